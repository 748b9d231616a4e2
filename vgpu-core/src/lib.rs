//! libvgpu.so: gives a program its share of a GPU and no more.
