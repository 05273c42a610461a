"""The modules that open, parse or write files by themselves and not through the door, each with its reason.

A file that someone else may have made is opened, parsed and written through the door. A module stands here because its
files are envkit's own or the system's, or because another rule opens them (images, downloads). A new module needs a
reason that a stranger accepts; one that now uses the door leaves the list.

Not measured: the payload and what runs inside a training, which have no envkit, and runners, which set up sandboxes.
"""

from __future__ import annotations

APART = ("envkit.smoke", "envkit.checks.c", "envkit.run", "envkit.watch")

OPENERS = {
    "the door itself, and locks": {"envkit.ground.foreign", "envkit.ground.store"},
    "files of this installation": {
        "envkit.assemble.top_layer", "envkit.checks.thresholds", "envkit.cli.help", "envkit.cli.schema",
        "envkit.facts.check_tables", "envkit.facts.evidence", "envkit.facts.load", "envkit.facts.snapshot",
        "envkit.ground.plugins", "envkit.pipeline.updating", "envkit.render.contextfiles", "envkit.report.html.frame",
        "envkit.verify.payload", "envkit.verify.record", "envkit.checks.system_libraries", "envkit.ground.installation",
        "envkit.project.installers", "envkit.assemble.bytecode",
    },
    "the state and cache of this user, which no one else can write": {
        "envkit.assemble.cache_archive", "envkit.engines.journal", "envkit.ground.cache",
        "envkit.engines.layer_cache", "envkit.engines.log",
        "envkit.evidence.ranges", "envkit.fleet.state", "envkit.ground.state",
        "envkit.image.blobs", "envkit.lock.built", "envkit.pipeline.sources", "envkit.registry.documents",
        "envkit.registry.download", "envkit.registry.push", "envkit.source.fetch", "envkit.source.look",
        "envkit.source.sandbox", "envkit.verify.selftest", "envkit.verify.verified", "envkit.assemble.wheel",
        "envkit.assemble.wheels", "envkit.lock.store",
    },
    "a folder that this run made": {
        "envkit.assemble.conda_child", "envkit.assemble.conda_install", "envkit.assemble.conda_unpack",
        "envkit.engines.bootstrap", "envkit.engines.buildkit", "envkit.engines.podman", "envkit.source.inside",
        "envkit.engines.compile_inside",
    },
    "the system's files, and its open descriptors": {
        "envkit.cli.main", "envkit.cli.stdio", "envkit.doctor.host.view", "envkit.fleet.concurrency",
        "envkit.ground.host", "envkit.ground.identity", "envkit.ground.nvml_child",
    },
    "settings of the user, which a checkout cannot name": {
        "envkit.engines.host_environment", "envkit.cli.export", "envkit.cli.render", "envkit.engines.address",
        "envkit.ground.settings", "envkit.lock.index_locations", "envkit.pipeline.running", "envkit.registry.auth",
    },
    "what the user typed, and only writes or reads data that is not parsed": {
        "envkit.attest.keys", "envkit.cli.record_output", "envkit.verify.user_data",
    },
    "images, whose files are checked by digest": {"envkit.image.archive", "envkit.image.layout"},
}  # fmt: skip

PARSERS = {
    "the parsers themselves": {"envkit.ground.canonical", "envkit.ground.strictyaml", "envkit.ground.trees"},
    "files of this installation": {
        "envkit.checks.thresholds", "envkit.cli.schema", "envkit.facts.evidence", "envkit.facts.load",
        "envkit.facts.snapshot", "envkit.ground.installation", "envkit.project.installers", "envkit.verify.record",
    },
    "the state and cache of this user, and what this run wrote": {
        "envkit.assemble.cache_archive", "envkit.engines.journal", "envkit.ground.cache",
        "envkit.fleet.build_task", "envkit.fleet.cluster", "envkit.fleet.cluster_run", "envkit.fleet.state",
        "envkit.fleet.verify_task",
        "envkit.ground.state", "envkit.lock.built", "envkit.plan.store",
        "envkit.project.definition", "envkit.project.listing", "envkit.render.lint", "envkit.source.inside",
        "envkit.verify.selftest", "envkit.verify.verified", "envkit.engines.compile_inside",
    },
    "answers of programs of this machine": {
        "envkit.assemble.conda_child", "envkit.assemble.conda_install", "envkit.engines.podman",
        "envkit.doctor.host.diagnose", "envkit.doctor.host.torch", "envkit.ground.nvidia", "envkit.lock.conda",
        "envkit.lock.conda_solver", "envkit.render.confined", "envkit.source.sandbox",
        "envkit.assemble.bytecode",
    },
    "settings of the user": {"envkit.engines.address", "envkit.registry.auth"},
    "documents of images and registries, which are validated field by field and whose errors are translated": {
        "envkit.assemble.conda_package", "envkit.assemble.conda_unpack", "envkit.attest.dsse", "envkit.attest.keyless",
        "envkit.attest.sbom", "envkit.attest.statement", "envkit.fleet.existing_images", "envkit.image.layout",
        "envkit.image.packages", "envkit.image.spec", "envkit.lock.file_lists", "envkit.registry.documents",
        "envkit.registry.registry", "envkit.registry.tagging", "envkit.render.dockerfile", "envkit.verify.launch",
        "envkit.verify.trace",
    },
}  # fmt: skip

WRITERS = {
    "the door itself, and atomic files": {"envkit.ground.foreign", "envkit.ground.store"},
    "what the user typed": {
        "envkit.cli.cover", "envkit.cli.export", "envkit.cli.init", "envkit.cli.matrix_check", "envkit.cli.output",
        "envkit.cli.record_output", "envkit.assemble.sif", "envkit.image.archive", "envkit.image.layout",
        "envkit.lock.store", "envkit.verify.baseline", "envkit.verify.record", "envkit.verify.trace",
    },
    "the state and cache of this user": {
        "envkit.assemble.cache_archive", "envkit.engines.journal", "envkit.ground.cache",
        "envkit.engines.layer_cache", "envkit.engines.log",
        "envkit.fleet.state", "envkit.ground.state", "envkit.lock.built",
        "envkit.plan.store", "envkit.registry.documents", "envkit.registry.download", "envkit.verify.selftest",
    },
    "a folder that this run made": {
        "envkit.assemble.conda_child", "envkit.engines.context", "envkit.lock.apt", "envkit.lock.uv",
        "envkit.source.sandbox", "envkit.engines.bootstrap", "envkit.engines.compile_inside",
    },
    "the tables of this installation": {"envkit.facts.snapshot", "envkit.pipeline.updating"},
    "no file: the formatter of click's help has such a method": {"envkit.cli.declare"},
}  # fmt: skip

NAMES: dict[str, set[str]] = {
    # Names of images that exist: an operand or an option, the API, the state folder, a task, the note of an image ID.
    "image_name": {
        "envkit.api", "envkit.cli.image_names", "envkit.cli.shell_values", "envkit.fleet.verify_task",
        "envkit.pipeline.machine", "envkit.run.rootless.store",
    },
    # The same of what was published: HOST/NAME is in its registry.
    "published_name": {"envkit.cli.image_names"},
    # `--output`, which travels to other machines as text.
    "output_name": {"envkit.engines.model"},
    # Names in registries: of a base in a plan or a lock, of FROM, of a target of a push, of a label, of `--registry`.
    "parse_reference": {
        "envkit.assemble.base", "envkit.assemble.outputs", "envkit.cli.attest", "envkit.engines.labels",
        "envkit.engines.locked_base", "envkit.export.model", "envkit.pipeline.publish", "envkit.project.bases",
    },
}  # fmt: skip
"""Modules that parse the text of an image's name with `envkit.image.name`; each says where text comes in."""

FAULT_LISTS = {
    "the first of several findings says more than the others": {
        "envkit.fleet.expand", "envkit.plan.copying", "envkit.render.lint",
    },
    "no errors of a document: ways to name a requirement, lines of uv, why launches differ": {
        "envkit.export.model", "envkit.ground.requirement", "envkit.lock.uv", "envkit.verify.compare.sides",
    },
}  # fmt: skip
"""Modules that raise a list of errors of their own and not `envkit.ground.errors.Faults`, each with its reason."""

NAMESAKES = {
    "envkit.engines.journal", "envkit.ground.state",  # folders of the state
    "envkit.facts.evidence", "envkit.plan.definition",  # folders of this installation
    "envkit.image.archive", "envkit.image.layout",  # folders of the image formats
}  # fmt: skip
"""Modules with folders that have the name of one of the cache's."""

TAG_SETTERS = {
    "the primitive, an image by its digest, and the index of what is attached to an image": {
        "envkit.registry.tagging", "envkit.registry.push", "envkit.registry.referrers",
    },
    "a name of an image in an engine: the engines, and a build before its verification": {
        "envkit.engines.buildkit", "envkit.engines.builder", "envkit.engines.docker",
    },
    "the tags of verified images": {"envkit.pipeline.publish"},
}  # fmt: skip
"""Modules that store manifests in registries or name images in engines, each with what it is that they name."""
