//! The client of tests/clients/program.py, written against cudarc: told what to do line by line.

use std::io::{self, BufRead, Write};

use cudarc::driver::{CudaContext, CudaSlice, DriverError, result};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let mut pieces: Vec<CudaSlice<u8>> = Vec::new();
    let take = |gib: &str| -> Result<CudaSlice<u8>, DriverError> {
        let bytes = (gib.parse::<f64>().expect("a number of GiB") * f64::from(1 << 30)) as usize;
        // SAFETY: the bytes are never read.
        unsafe { stream.alloc::<u8>(bytes) }
    };
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let answer = match (words.next().unwrap_or_default(), words.next().unwrap_or_default()) {
            ("total", _) => result::mem_get_info()?.1.to_string(),
            ("free", _) => result::mem_get_info()?.0.to_string(),
            ("take", gib) => match take(gib) {
                Ok(piece) => {
                    pieces.push(piece);
                    "took".to_owned()
                }
                Err(error) => format!("refused {error}"),
            },
            ("fill", gib) => {
                let before = pieces.len();
                while let Ok(piece) = take(gib) {
                    pieces.push(piece);
                }
                (pieces.len() - before).to_string()
            }
            ("drop", _) => {
                pieces.pop();
                stream.synchronize()?;
                "done".to_owned()
            }
            ("spin", _) => {
                context.synchronize()?;
                "done".to_owned()
            }
            (word, _) => return Err(format!("unknown word {word:?}").into()),
        };
        println!("{answer}");
        io::stdout().flush()?;
    }
    Ok(())
}
