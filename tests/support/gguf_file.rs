//! Writes small GGUF files for tests.
#![allow(dead_code)] // each test file uses what it needs

/// A file in the making: version 3, alignment 32.
#[derive(Default)]
pub struct GgufFile {
    metadata: Vec<u8>,
    metadata_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
}

impl GgufFile {
    pub fn new() -> Self {
        Self::of("llama")
    }

    pub fn of(architecture: &str) -> Self {
        Self::default().string("general.architecture", architecture)
    }

    /// Any entry: type id and payload as they are in the file.
    pub fn entry(mut self, key: &str, type_id: u32, payload: &[u8]) -> Self {
        self.metadata.extend(text(key));
        self.metadata.extend(type_id.to_le_bytes());
        self.metadata.extend(payload);
        self.metadata_count += 1;
        self
    }

    pub fn string(self, key: &str, value: &str) -> Self {
        self.entry(key, 8, &text(value))
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.entry(key, 4, &value.to_le_bytes())
    }

    pub fn array(self, key: &str, element_type: u32, count: u64, elements: &[u8]) -> Self {
        let mut payload = element_type.to_le_bytes().to_vec();
        payload.extend(count.to_le_bytes());
        payload.extend(elements);
        self.entry(key, 9, &payload)
    }

    pub fn strings(self, key: &str, values: &[&str]) -> Self {
        let elements: Vec<u8> = values.iter().flat_map(|value| text(value)).collect();
        self.array(key, 8, values.len() as u64, &elements)
    }

    pub fn tensor_f32(self, name: &str, dimensions: &[u64], values: &[f32]) -> Self {
        assert_eq!(dimensions.iter().product::<u64>(), values.len() as u64);
        let data: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.tensor(name, 0, dimensions, &data)
    }

    /// A tensor of any type, with its bytes as they are in the file.
    pub fn tensor(mut self, name: &str, type_id: u32, dimensions: &[u64], data: &[u8]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        self.tensors.extend(text(name));
        self.tensors.extend((dimensions.len() as u32).to_le_bytes());
        for dimension in dimensions {
            self.tensors.extend(dimension.to_le_bytes());
        }
        self.tensors.extend(type_id.to_le_bytes());
        self.tensors.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend(data);
        self.tensor_count += 1;
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(self.tensor_count.to_le_bytes());
        file.extend(self.metadata_count.to_le_bytes());
        file.extend(&self.metadata);
        file.extend(&self.tensors);
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&self.data);
        file.resize(file.len().next_multiple_of(32), 0);
        file
    }
}

/// A text as it is in the file: length and bytes.
pub fn text(value: &str) -> Vec<u8> {
    let mut bytes = (value.len() as u64).to_le_bytes().to_vec();
    bytes.extend(value.as_bytes());
    bytes
}
