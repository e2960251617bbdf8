"""What makes a start fast, and is kept from one start to the next: compiled kernels, byte code, and weights in memory."""
