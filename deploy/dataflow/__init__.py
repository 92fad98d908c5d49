"""Google Dataflow: the Flex Template's launcher and parameters, and the requirements of workers without an image."""
