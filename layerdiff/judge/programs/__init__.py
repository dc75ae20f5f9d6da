"""What is run: bodies, what comes into them, their programs, and the constants that they read."""
