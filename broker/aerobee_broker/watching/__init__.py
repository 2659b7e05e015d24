"""What the broker watches in itself: figures over time, and problems that need somebody's attention."""
