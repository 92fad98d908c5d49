"""A job whose store becomes a member of a collection: where it lies, whether it may, what it need not compute."""

import json
from dataclasses import replace

from elmo_store.collecting import check_collection, name_of
from elmo_store.errors import StoreError
from elmo_store.format.layout import START_STATE, member
from elmo_store.format.manifest import Manifest, StartStateInfo
from elmo_store.format.version import check_agrees
from elmo_store.storage.root import Root
from model.start_state import StartState
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs.model_loading import LoadedModel
from transforms.stages.known import KnownSource, source_of


def member_of(root: Root, manifest: Manifest, model: LoadedModel, *, reuse: bool) -> tuple[Root, LoadedModel, KnownSource | None]:
    """The member's own root in the collection at ``root``, the model with the collection's start state, what may be copied.

    The same job is the same member, so the same command continues. CommandError if something else stands at ``root``,
    MemberMismatchError, field by field, if the job's store could not be a member.
    """
    try:
        newest = check_collection(root)
    except StoreError as error:
        raise CommandError(Exit.REFUSED, str(error)) from error
    own = Root(root.url(member(name_of(json.dumps(dict(manifest.job), sort_keys=True)))), root.storage_options)
    if newest is None:
        return own, model, None
    if (newest.store.model.fingerprint, newest.store.start_state.kind) == (manifest.model.fingerprint, model.start.kind):
        first = Root(root.url(member(newest.members[0].name)), root.storage_options)
        model = replace(model, start=StartState.from_bytes(first.get(START_STATE)))  # other machines may round otherwise
    begun = replace(manifest, start_state=StartStateInfo(model.start.kind, model.start.sha256))
    check_agrees(str(root), newest.store, "what is asked for", begun)
    return own, model, source_of(root, newest, manifest.job) if reuse else None
