"""In which order a recorded call added up."""
