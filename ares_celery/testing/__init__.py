"""For the tests of users: fixtures and a harness."""
