"""What an engine counts while it computes."""

from dataclasses import dataclass, fields

from model.engine.planner import DirectionPlan
from model.engine.words import GateTable

__all__ = ["EngineStats"]


@dataclass
class EngineStats:
    """What an embedder has done so far.

    Attributes:
        rows: rows returned. truncated_words: how many of them are of words longer than the model reads.
        words_looked_up: tokens of the requests' sentences. words_computed: words among them that went through the CNN.
        table_wanted: cells that asked the gate tables. table_computed: rows that had to be computed for them.
        cells: lanes × steps of all grids. cells_used: those that computed something.
        cells_asked: tokens, boundaries included, that a grid without sharing would have had.
        seconds_words, seconds_lstm, seconds: preparing calls and the character CNN; from there to the last state; both.
    """

    rows: int = 0
    truncated_words: int = 0
    words_looked_up: int = 0
    words_computed: int = 0
    table_wanted: int = 0
    table_computed: int = 0
    cells: int = 0
    cells_used: int = 0
    cells_asked: int = 0
    seconds_words: float = 0.0
    seconds_lstm: float = 0.0
    seconds: float = 0.0

    @property
    def lane_fill(self) -> float:
        """Share of cells that computed something."""
        return self.cells_used / max(1, self.cells)

    @property
    def table_hits(self) -> float:
        """Share of cells whose first-layer gates were in the table already."""
        return 1 - self.table_computed / max(1, self.table_wanted)

    @property
    def word_hits(self) -> float:
        """Share of tokens whose word's x was known already."""
        return 1 - self.words_computed / max(1, self.words_looked_up)

    def count_direction(self, plan: DirectionPlan, table: GateTable, n_asked: int) -> None:
        """Add one direction of a group that was computed, and what its table counted meanwhile."""
        self.table_wanted += table.n_wanted
        self.table_computed += table.n_computed
        table.n_wanted = table.n_computed = 0
        self.cells += plan.n_cells
        self.cells_used += plan.n_computed
        self.cells_asked += n_asked

    def add(self, other: "EngineStats") -> None:
        """Add what another one counted."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
