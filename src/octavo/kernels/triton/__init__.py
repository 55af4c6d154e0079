"""GPU kernels in Triton, each with a wrapper that checks what it is given.

They need torch and Triton, and run on a GPU, or on CPU tensors with TRITON_INTERPRET=1.
"""
