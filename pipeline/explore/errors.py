"""What a question is answered with that has no answer."""


class BadRequestError(ValueError):
    """What was asked for makes no sense, or is not there; the message is for the page."""


class OwnSentenceError(BadRequestError):
    """A sentence of the user's can't be embedded as the store's were; says why."""
