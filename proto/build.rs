//! Compiles `tidings/v1/*.proto` with protox, a protobuf compiler in Rust: no protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["event", "record", "frame", "service", "wire"].map(|name| format!("tidings/v1/{name}.proto"));
    for file in &files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(&files, ["."])?;
    // All `bytes` fields become `Bytes`: slices of the received buffer, never copies.
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
