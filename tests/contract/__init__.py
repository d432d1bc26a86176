"""What every implementation of a port keeps."""
