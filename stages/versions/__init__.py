"""What Git and DVC keep: revisions and what differs between them, experiments, and the jobs of a sweep that make them."""
