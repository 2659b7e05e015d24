"""What the store does when the disk fills up: it removes what has expired, then older files, then refuses."""
