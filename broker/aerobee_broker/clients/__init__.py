"""Connected clients and their permissions."""
