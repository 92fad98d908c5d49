"""How stages are joined in a Beam graph: in as few transforms as it takes, as each costs a small job milliseconds.

Beam's own Reshuffle and CombineGlobally take 8 and 17, to keep windows, timestamps and empty inputs, which no job here has.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.portability import common_urns
from apache_beam.pvalue import PCollection


class Spread(beam.PTransform[PCollection[Any], PCollection[Any]]):
    """Elements as they are, spread anew over the workers; engines do it evenly, as they know it by Beam's name for it."""

    def expand(self, elements: PCollection[Any]) -> PCollection[Any]:
        """Each element is a group of its own, for a runner that does not know the name."""
        return (
            elements
            | "Key" >> beam.Map(_keyed, 32)
            | beam.GroupByKey()
            | "Value" >> beam.FlatMap(lambda group: group[1])
        )

    def to_runner_api_parameter(self, unused_context: Any) -> tuple[str, None]:
        return common_urns.composites.RESHUFFLE.urn, None


def spread(work: Callable[..., Any], *arguments: Any, flat: bool = False) -> beam.PTransform:
    """``work(element, *arguments)`` of every element, spread over the workers; ``flat``: its results one by one."""
    apply = beam.FlatMap if flat else beam.Map
    return "Spread" >> Spread() | work.__name__ >> apply(work, *arguments)


def gathered(
    work: Callable[..., Iterable[Any]], *arguments: Any, outputs: Sequence[str] = ()
) -> beam.PTransform:
    """``work(elements, *arguments)`` of all elements as one Iterable, once the last is there; its results one by one.

    There is at least one element: where there is none, nothing is done. ``outputs``: tags of the results.
    """
    apply = beam.FlatMap(lambda group, *more: work(group[1], *more), *arguments)
    group = "Key" >> beam.Map(_keyed, 0) | beam.GroupByKey()
    return group | work.__name__ >> (apply.with_outputs(*outputs) if outputs else apply)


def _keyed(element: Any, bits: int) -> tuple[int, Any]:
    """A random number and the element; of 0 bits the numbers are all alike."""
    return random.getrandbits(bits), element
