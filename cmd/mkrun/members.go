package main

import (
	"context"
	"io"
	"os"

	"github.com/mkrun/mkrun/internal/gather"
	"github.com/mkrun/mkrun/internal/keeper"
	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/request"
)

// members are the parts of a job that mkrun starts from its own binary. They are not for people, and
// skip the command line so that they start fast.
var members = map[string]func(ctx context.Context, stdin io.Reader, stderr io.Writer) int{
	launch.AgentCommand: func(ctx context.Context, stdin io.Reader, stderr io.Writer) int {
		return launch.Agent(ctx, stdin, os.Stdout, stderr)
	},
	launch.HeadCommand: func(ctx context.Context, stdin io.Reader, stderr io.Writer) int {
		return launch.Head(ctx, stdin, os.Stdout, stderr)
	},
	keeper.CommandName: func(ctx context.Context, _ io.Reader, _ io.Writer) int {
		return keeper.Main(ctx)
	},
	launch.RankCommand: func(ctx context.Context, _ io.Reader, stderr io.Writer) int {
		return launch.Rank(ctx, stderr, request.Execute)
	},
	gather.Command: func(ctx context.Context, _ io.Reader, stderr io.Writer) int {
		return launch.Rank(ctx, stderr, gather.Describe)
	},
}
