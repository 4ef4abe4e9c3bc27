"""Lightning strategies; one file each."""
