package main

import (
	"fmt"
	"log/slog"
	"net"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/session"
	"github.com/mkrun/mkrun/internal/stdio"
)

// newAgent is the command of agents that stand: those of a job are started without a command line of their own.
func newAgent() *cobra.Command {
	var listen, secret string
	var verbose bool
	cmd := &cobra.Command{
		Use:   "agent --listen[=ADDRESS:PORT]",
		Short: "Wait on this host for your launches (mkrun launch --agent standing)",
		Long: `Waits for launches of whoever has the secret in the file, and starts their agents as the user that this process runs
as. The file must be the user's own and closed to others (0600). If it is not there it is made: where hosts share a
home, all standing agents of a user then have the same.`,
		Example: `  mkrun agent --listen &                                 # on each host
  mkrun launch --agent standing -H a:8,b:8 -- python train.py`,
		Args: noMoreArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("listen") {
				return &usageError{cmd.CommandPath(), fmt.Errorf("say --listen: agents of a job are started by mkrun launch")}
			}
			at, err := listenAddress(listen)
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			path, err := secretFile(secret)
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			key, made, err := session.CreateSecretFile(path)
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			if made {
				fmt.Fprintf(cmd.ErrOrStderr(), "mkrun: made a secret: %s\n", path)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
			defer stop()
			lc := net.ListenConfig{KeepAliveConfig: launch.StandingKeepAlive}
			listener, err := lc.Listen(ctx, "tcp", at)
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "mkrun: listening for launches: %v\n", err)
				return exitStatus(stdio.StatusLauncher)
			}
			level := slog.LevelWarn
			if verbose {
				level = slog.LevelDebug
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "mkrun: waiting for launches at %s\n", listener.Addr())
			if err := launch.Stand(ctx, listener, key, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))); err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "mkrun: %v\n", err)
				return exitStatus(stdio.StatusLauncher)
			}
			return nil
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&listen, "listen", "", "address and port, or port, to wait at")
	fs.Lookup("listen").NoOptDefVal = strconv.Itoa(launch.DefaultStandingPort)
	fs.StringVar(&secret, "secret", "", "file with the secret (default: mkrun/secret in your configuration folder)")
	fs.BoolVarP(&verbose, "verbose", "v", false, "log launches, on stderr")
	return cmd
}

// listenAddress reads ADDRESS:PORT, :PORT or PORT.
func listenAddress(text string) (string, error) {
	if !strings.Contains(text, ":") {
		text = ":" + text
	}
	host, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return "", fmt.Errorf("--listen %s: expected a port, or an address and a port as in 10.0.0.1:%d or [fd00::1]:%d",
			text, launch.DefaultStandingPort, launch.DefaultStandingPort)
	}
	return net.JoinHostPort(host, port), nil
}

// secretFile is the file that was named, or where it is by default.
func secretFile(path string) (string, error) {
	if path != "" {
		return path, nil
	}
	return launch.DefaultSecretFile()
}
