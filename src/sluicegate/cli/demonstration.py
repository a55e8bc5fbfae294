"""`demo`: what the gateway does, shown with real requests to real processes on this machine."""

from typing import Annotated

import typer

from sluicegate.cli.console import InputError, console
from sluicegate.cli.scenes import SCENES
from sluicegate.cli.stage import running


def demo(scenes: Annotated[list[str] | None, typer.Argument(metavar="[SCENE]...", help=f"Of: {', '.join(SCENES)}; all without.")] = None) -> None:
    """Show budgets and failing providers against a mock on this machine. Leaves nothing behind. Exit code 1 where a scene did not go as it should."""
    for name in scenes or ():
        if name not in SCENES:
            raise InputError(f"there is no scene {name}; there are {', '.join(SCENES)}")
    failed = []
    with running() as stage:
        for name in scenes or SCENES:
            scene = SCENES[name]
            console.print()
            console.rule(scene.shows, align="left")
            seen = scene.play(stage)
            console.print(f"Seen: {seen.text}.", style="bold" if seen.held else "bold red", highlight=False, markup=False, soft_wrap=True)
            if not seen.held:
                failed.append(name)
    if failed:
        console.print(f"\nNot as they should be: {', '.join(failed)}", style="bold red", highlight=False)
        raise typer.Exit(1)
