"""The test suite: a package, so that no installed `tests` folder of somebody else can take its place."""
