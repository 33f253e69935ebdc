"""What Git and DVC keep of the project: revisions, experiments, and how two versions differ."""
