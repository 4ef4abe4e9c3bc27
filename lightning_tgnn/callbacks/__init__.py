"""Lightning callbacks: tuners and monitors."""
