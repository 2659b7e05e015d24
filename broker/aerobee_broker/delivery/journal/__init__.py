"""The delivery journal: saves every change of a delivery, and replays them at a start."""
