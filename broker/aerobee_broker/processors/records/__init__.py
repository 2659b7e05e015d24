"""RecordService: messages in bulk, as records of the store. One module per call."""
