"""What a user takes away: the kernel that a word names, and the file with its source."""
