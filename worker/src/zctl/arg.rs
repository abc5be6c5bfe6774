//! Arguments of `zctl call run`: `i32:-5`, `f32:1.5`, `bytes:@F`, `tensor:in=a.npy`, `tensor:out=f32[2,3]>c.npy`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use worker_cuda::zctl::Arg;

use crate::failure::{Failure, Outcome};
use crate::npy::{Array, element_bytes};

/// Types of elements, by their numbers in descriptors.
const DTYPES: [&str; 12] = [
    "f32", "f16", "bf16", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64",
];
const ALIGNMENT: usize = 64;

/// What stands in a word of the command line.
enum Given {
    Value(Arg),
    Bytes(Vec<u8>),
    Input(Array),
    Output(Array, PathBuf),
}

/// Where a result goes.
pub struct Output {
    pub array: Array,
    pub path: PathBuf,
    /// In the memory of the connection.
    pub offset: usize,
}

/// Arguments, the memory they lie in from offset 0, and what comes back.
#[derive(Default)]
pub struct Prepared {
    pub args: Vec<Arg>,
    pub memory: Vec<u8>,
    pub outputs: Vec<Output>,
}

pub fn prepare(words: &[String]) -> Outcome<Prepared> {
    let mut prepared = Prepared::default();
    for word in words {
        let given = parse(word)?;
        prepared.add(given);
    }
    Ok(prepared)
}

impl Prepared {
    fn place(&mut self, bytes: &[u8]) -> usize {
        let offset = self.memory.len().next_multiple_of(ALIGNMENT);
        self.memory.resize(offset, 0);
        self.memory.extend(bytes);
        offset
    }

    fn add_tensor(&mut self, array: &Array) -> usize {
        let data = self.place(&array.bytes);
        let shape: Vec<u8> = array
            .shape
            .iter()
            .flat_map(|dim| (*dim as u32).to_le_bytes())
            .collect();
        let shape = self.place(&shape);
        let dtype = DTYPES.iter().position(|name| *name == array.dtype);
        let fields = [
            dtype.map_or(0, |index| index as u32 + 1),
            array.shape.len() as u32,
            0,
            data as u32,
            array.bytes.len() as u32,
            shape as u32,
            0,
            0,
        ];
        let descriptor: Vec<u8> = fields.into_iter().flat_map(u32::to_le_bytes).collect();
        let descriptor = self.place(&descriptor) as u32;
        self.args.push(Arg::Tensor { descriptor });
        data
    }

    fn add(&mut self, given: Given) {
        match given {
            Given::Value(arg) => self.args.push(arg),
            Given::Bytes(bytes) => {
                let offset = self.place(&bytes) as u32;
                let length = bytes.len() as u32;
                self.args.push(Arg::Bytes { offset, length });
            }
            Given::Input(array) => {
                self.add_tensor(&array);
            }
            Given::Output(array, path) => {
                let offset = self.add_tensor(&array);
                self.outputs.push(Output {
                    array,
                    path,
                    offset,
                });
            }
        }
    }
}

fn wrong(word: &str, what: &str) -> Failure {
    Failure::usage(format!("argument '{word}': {what}"))
}

fn parse(word: &str) -> Outcome<Given> {
    let (kind, text) = word.split_once(':').ok_or_else(|| {
        wrong(
            word,
            "is not TYPE:VALUE; types are i32, u32, i64, u64, f32, f64, bytes, tensor",
        )
    })?;
    let value = match kind {
        "i32" => Arg::I32(number(word, text)?),
        "u32" => Arg::U32(number(word, text)?),
        "i64" => Arg::I64(number(word, text)?),
        "u64" => Arg::U64(number(word, text)?),
        "f32" => Arg::F32(number(word, text)?),
        "f64" => Arg::F64(number(word, text)?),
        "bytes" => {
            let path = text
                .strip_prefix('@')
                .ok_or_else(|| wrong(word, "bytes come from a file: bytes:@FILE"))?;
            let bytes = std::fs::read(path).map_err(|error| Failure::file(Path::new(path), &error));
            return bytes.map(Given::Bytes);
        }
        "tensor" => return tensor(word, text),
        _ => return Err(wrong(word, "its type is unknown")),
    };
    Ok(Given::Value(value))
}

fn number<T: FromStr>(word: &str, text: &str) -> Outcome<T> {
    text.parse()
        .map_err(|_| wrong(word, "is no number of its type"))
}

fn tensor(word: &str, text: &str) -> Outcome<Given> {
    if let Some(path) = text.strip_prefix("in=") {
        let array = Array::read(Path::new(path))?;
        if array.shape.iter().any(|dim| *dim > u64::from(u32::MAX)) {
            return Err(wrong(word, "a dimension is past 2^32"));
        }
        return Ok(Given::Input(array));
    }
    let form = || wrong(word, "is not tensor:in=FILE or tensor:out=TYPE[SIZES]>FILE");
    let (array, path) = text
        .strip_prefix("out=")
        .and_then(|text| text.split_once('>'))
        .ok_or_else(form)?;
    let (dtype, dims) = array
        .strip_suffix(']')
        .and_then(|array| array.split_once('['))
        .ok_or_else(form)?;
    let dtype = DTYPES
        .into_iter()
        .find(|name| *name == dtype && element_bytes(name).is_some())
        .ok_or_else(|| wrong(word, "its type cannot be stored in a .npy file"))?;
    let shape: Vec<u32> = dims
        .split(',')
        .filter(|dim| !dim.trim().is_empty())
        .map(|dim| number(word, dim.trim()))
        .collect::<Outcome<_>>()?;
    let bytes = shape
        .iter()
        .try_fold(element_bytes(dtype).unwrap_or(1), |bytes, dim| {
            bytes.checked_mul(*dim as usize)
        })
        .filter(|bytes| *bytes <= 1 << 30)
        .ok_or_else(|| wrong(word, "is more than 1 GiB"))?;
    let array = Array {
        dtype,
        shape: shape.into_iter().map(u64::from).collect(),
        bytes: vec![0; bytes],
    };
    Ok(Given::Output(array, path.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(word: &str) -> String {
        match prepare(&[word.to_owned()]) {
            Ok(_) => panic!("'{word}' was accepted"),
            Err(failure) => failure.to_string(),
        }
    }

    #[test]
    fn values_become_arguments() {
        let words = ["i32:-5", "u64:18446744073709551615", "f32:1.5"].map(str::to_owned);
        let prepared = prepare(&words).unwrap();
        assert_eq!(
            prepared.args,
            [Arg::I32(-5), Arg::U64(u64::MAX), Arg::F32(1.5)]
        );
        assert!(prepared.memory.is_empty());
    }

    #[test]
    fn outputs_have_a_descriptor_behind_their_data() {
        let prepared = prepare(&["tensor:out=f32[2,3]>c.npy".to_owned()]).unwrap();
        let [output] = &prepared.outputs[..] else {
            panic!("one output")
        };
        assert_eq!((output.offset, output.array.bytes.len()), (0, 24));
        assert_eq!(prepared.args, [Arg::Tensor { descriptor: 128 }]);
        let fields: Vec<u32> = prepared.memory[128..160]
            .chunks(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(fields, [1, 2, 0, 0, 24, 64, 0, 0]);
        assert_eq!(prepared.memory[64..72], [2, 0, 0, 0, 3, 0, 0, 0]);
    }

    #[test]
    fn mistakes_name_the_word() {
        for word in [
            "5",
            "i32:x",
            "i32:2147483648",
            "i8:1",
            "bytes:file",
            "tensor:out=f32[2]",
            "tensor:out=f32>c.npy",
            "tensor:out=f31[2]>c.npy",
            "tensor:out=bf16[2]>c.npy",
            "tensor:out=f32[99999,99999]>c.npy",
            "tensor:a.npy",
        ] {
            assert!(refused(word).contains(&format!("'{word}'")), "{word}");
        }
    }
}
