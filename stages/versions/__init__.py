"""What Git and DVC keep: revisions and how they differ, experiments, sweep jobs."""
