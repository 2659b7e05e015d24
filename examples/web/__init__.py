"""Web applications that send to a broker and receive from it."""
