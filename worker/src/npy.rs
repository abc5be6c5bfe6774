//! Arrays in NumPy's .npy files: little-endian numbers in C order only.
//!
//! The format (numpy.lib.format): `\x93NUMPY`, version, length of the header, the header as a Python
//! dictionary of exactly descr, fortran_order and shape, then the elements.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use crate::failure::{Failure, Outcome};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
const HEADER_BYTES_MAX: usize = 1 << 16;
/// NumPy pads headers to a multiple of this.
const ALIGNMENT: usize = 64;

/// Types of elements: their name here, and in the header.
const TYPES: [(&str, &str, usize); 11] = [
    ("i8", "|i1", 1),
    ("u8", "|u1", 1),
    ("i16", "<i2", 2),
    ("u16", "<u2", 2),
    ("i32", "<i4", 4),
    ("u32", "<u4", 4),
    ("i64", "<i8", 8),
    ("u64", "<u8", 8),
    ("f16", "<f2", 2),
    ("f32", "<f4", 4),
    ("f64", "<f8", 8),
];

/// An array as stored in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// "f32" and so on. NumPy has no bf16; its bits are stored as "u16".
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    /// Elements in C order, little-endian.
    pub bytes: Vec<u8>,
}

/// Bytes of an element.
pub fn element_bytes(dtype: &str) -> Option<usize> {
    let row = TYPES.iter().find(|(name, ..)| *name == dtype)?;
    Some(row.2)
}

impl Array {
    pub fn read(path: &Path) -> Outcome<Self> {
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map_err(|error| Failure::file(path, &error))?;
        parse(&bytes).map_err(|what| Failure::new(format!("{}: {what}", path.display())))
    }

    pub fn write(&self, path: &Path) -> Outcome {
        let mut file = File::create(path).map_err(|error| Failure::file(path, &error))?;
        file.write_all(&self.header())
            .and_then(|()| file.write_all(&self.bytes))
            .map_err(|error| Failure::file(path, &error))
    }

    fn header(&self) -> Vec<u8> {
        let descr = TYPES.iter().find(|(name, ..)| *name == self.dtype);
        let descr = descr.map_or("", |(_, descr, _)| descr);
        let dims: String = self.shape.iter().map(|dim| format!("{dim},")).collect();
        let mut text =
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
        while !(MAGIC.len() + 4 + text.len() + 1).is_multiple_of(ALIGNMENT) {
            text.push(' ');
        }
        text.push('\n');
        let mut header = MAGIC.to_vec();
        header.extend([1, 0]);
        header.extend((text.len() as u16).to_le_bytes());
        header.extend(text.as_bytes());
        header
    }
}

fn parse(bytes: &[u8]) -> Result<Array, String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("is no .npy file")?;
    let (&[major, _minor], rest) = rest.split_first_chunk().ok_or("is cut short")?;
    let (length, rest) = match major {
        1 => {
            let (length, rest) = rest.split_first_chunk().ok_or("is cut short")?;
            (usize::from(u16::from_le_bytes(*length)), rest)
        }
        2 | 3 => {
            let (length, rest) = rest.split_first_chunk().ok_or("is cut short")?;
            (u32::from_le_bytes(*length) as usize, rest)
        }
        other => return Err(format!("is of version {other}, 1 to 3 are known")),
    };
    if length > HEADER_BYTES_MAX {
        return Err(format!(
            "has a header of {length} bytes, at most {HEADER_BYTES_MAX}"
        ));
    }
    let (header, elements) = rest.split_at_checked(length).ok_or("is cut short")?;
    let header = std::str::from_utf8(header).map_err(|_| "has a header that is no text")?;
    let (dtype, width, shape) = Header(header).read()?;
    let count = shape
        .iter()
        .try_fold(width as u64, |product, dim| product.checked_mul(*dim))
        .ok_or("has a shape that overflows")?;
    if elements.len() as u64 != count {
        return Err(format!(
            "has {} bytes of elements, its shape needs {count}",
            elements.len()
        ));
    }
    Ok(Array {
        dtype,
        shape,
        bytes: elements.to_vec(),
    })
}

/// What is left of a header.
struct Header<'a>(&'a str);

impl<'a> Header<'a> {
    fn read(mut self) -> Result<(&'static str, usize, Vec<u64>), String> {
        let (mut descr, mut is_c_order, mut shape) = (None, false, None);
        self.expect("{")?;
        while !self.accept("}") {
            let key = self.text()?;
            self.expect(":")?;
            match key {
                "descr" if descr.is_none() => descr = Some(self.text()?),
                "fortran_order" => {
                    if !self.accept("False") {
                        return Err("is not in C order".into());
                    }
                    is_c_order = true;
                }
                "shape" if shape.is_none() => shape = Some(self.shape()?),
                other => return Err(format!("has a header with '{other}' where it may not be")),
            }
            if !self.accept(",") {
                self.expect("}")?;
                break;
            }
        }
        if !self.0.trim().is_empty() {
            return Err("has more than a dictionary as its header".into());
        }
        let (Some(descr), true, Some(shape)) = (descr, is_c_order, shape) else {
            return Err("has a header without descr, fortran_order or shape".into());
        };
        let row = TYPES.iter().find(|(_, name, _)| *name == descr);
        let (name, _, width) = row.ok_or(format!("has elements of type '{descr}'"))?;
        Ok((name, *width, shape))
    }

    fn accept(&mut self, token: &str) -> bool {
        self.0 = self.0.trim_start_matches(' ');
        match self.0.strip_prefix(token) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        match self.accept(token) {
            true => Ok(()),
            false => Err(format!("has a header without a '{token}' it needs")),
        }
    }

    fn text(&mut self) -> Result<&'a str, String> {
        self.expect("'")?;
        let (text, rest) = self
            .0
            .split_once('\'')
            .ok_or("has a header that is cut short")?;
        self.0 = rest;
        Ok(text)
    }

    fn shape(&mut self) -> Result<Vec<u64>, String> {
        let mut shape = Vec::new();
        self.expect("(")?;
        while !self.accept(")") {
            self.0 = self.0.trim_start_matches(' ');
            let end = self
                .0
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(self.0.len());
            let dim = self.0[..end]
                .parse()
                .map_err(|_| "has a shape that is no list of numbers")?;
            shape.push(dim);
            self.0 = &self.0[end..];
            if !self.accept(",") {
                self.expect(")")?;
                break;
            }
        }
        if shape.len() > 32 {
            return Err(format!("has {} dimensions, at most 32", shape.len()));
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Array {
        Array {
            dtype: "f32",
            shape: vec![2, 3],
            bytes: (0..24).collect(),
        }
    }

    fn whole(array: &Array) -> Vec<u8> {
        [array.header(), array.bytes.clone()].concat()
    }

    /// A file with this header.
    fn file(header: &str, elements: usize) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + elements, 7);
        bytes
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (dtype, _, width) in TYPES {
            for shape in [vec![], vec![5], vec![0, 4], vec![2, 1, 3]] {
                let count = shape.iter().product::<u64>() as usize;
                let array = Array {
                    dtype,
                    shape,
                    bytes: vec![3; count * width],
                };
                let bytes = whole(&array);
                assert_eq!((bytes.len() - array.bytes.len()) % 64, 0);
                assert_eq!(parse(&bytes).unwrap(), array);
            }
        }
    }

    /// As numpy 2.3 writes it: np.save of np.arange(6, dtype=np.int16).reshape(2, 3).
    #[test]
    fn files_of_numpy_are_read() {
        let header = format!(
            "{:<117}\n",
            "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }"
        );
        let array = parse(&file(&header, 12)).unwrap();
        assert_eq!((array.dtype, array.shape), ("i16", vec![2, 3]));
    }

    #[test]
    fn every_prefix_is_refused() {
        let bytes = whole(&sample());
        for end in 0..bytes.len() {
            assert!(parse(&bytes[..end]).is_err(), "{end}");
        }
        assert!(
            parse(&[bytes, vec![0]].concat()).is_err(),
            "a byte too many"
        );
    }

    #[test]
    fn strange_headers_are_refused() {
        let cases = [
            (
                "{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }",
                "is not in C order",
            ),
            (
                "{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }",
                "has elements of type '>f4'",
            ),
            (
                "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
                "has elements of type '|O'",
            ),
            (
                "{'descr': '<f4', 'shape': (1,), }",
                "has a header without descr, fortran_order or shape",
            ),
            (
                "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
                "has a header with 'descr' where it may not be",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
                "has a shape that is no list of numbers",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296,4294967296), }",
                "has a shape that overflows",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }",
                "has 4 bytes of elements, its shape needs 8",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } + 1",
                "has more than a dictionary as its header",
            ),
        ];
        for (header, message) in cases {
            assert_eq!(parse(&file(header, 4)).unwrap_err(), message, "{header}");
        }
        let mut other = whole(&sample());
        other[6] = 4;
        assert_eq!(
            parse(&other).unwrap_err(),
            "is of version 4, 1 to 3 are known"
        );
        assert_eq!(
            parse(b"PK\x03\x04 and so on").unwrap_err(),
            "is no .npy file"
        );
    }

    /// Bytes of any kind; headers put together of what headers are made of; a good file with some bytes replaced.
    fn foreign() -> impl Strategy<Value = Vec<u8>> {
        const PARTS: [&str; 24] = [
            "{",
            "}",
            "(",
            ")",
            ":",
            ",",
            " ",
            "'",
            "'descr'",
            "'fortran_order'",
            "'shape'",
            "'<f4'",
            "'|u1'",
            "'<i8'",
            "True",
            "False",
            "0",
            "1",
            "3",
            "-1",
            "4294967296",
            "18446744073709551616",
            "\n",
            "x",
        ];
        let header = prop::collection::vec(prop::sample::select(&PARTS[..]), 0..24);
        let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6);
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            (header, 0..32usize).prop_map(|(parts, elements)| file(&parts.concat(), elements)),
            changes.prop_map(|changes| {
                let mut bytes = whole(&sample());
                for (place, value) in changes {
                    let place = place.index(bytes.len());
                    bytes[place] = value;
                }
                bytes
            }),
        ]
    }

    proptest! {
        #[test]
        fn foreign_bytes_are_an_array_or_an_error(bytes in foreign()) {
            if let Ok(array) = parse(&bytes) {
                let count: u64 = array.shape.iter().product();
                let width = element_bytes(array.dtype).expect("a type of the table");
                prop_assert_eq!(count * width as u64, array.bytes.len() as u64);
                prop_assert_eq!(parse(&whole(&array)), Ok(array));
            }
        }
    }
}
