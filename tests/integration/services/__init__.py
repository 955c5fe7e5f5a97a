"""Services of other people, as processes of the tests."""
