package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/terminal"
)

const (
	// reportLimit bounds one command: doctor watches the counters for 2 s, and a daemon that hangs is
	// given up after 5 s.
	reportLimit = 20 * time.Second
	// maxReported bounds the output of one command, in bytes: a status with 100,000 peers has 20 MB.
	maxReported = 64 << 20
)

// evidence is a file of the report: what a command prints. The command "ipoibd" is this program.
var evidence = []struct{ file, command string }{
	{"version.txt", "ipoibd version"},
	{"doctor.txt", "ipoibd doctor"},
	{"status.json", "ipoibd status --json"},
	{"status.txt", "ipoibd status -v"},
	{"peers.txt", "ipoibd peers"},
	{"events.txt", "ipoibd events"},
	{"devices.txt", "ipoibd devices"},
	{"log.txt", "journalctl --no-pager --unit=ipoibd.service --lines=5000"},
	{"kernel.txt", "uname -a"},
	{"kernel-log.txt", "dmesg"},
	{"links.txt", "ip -details -statistics link show"},
	{"addresses.txt", "ip address show"},
	{"routes.txt", "ip route show table all"},
	{"neighbours.txt", "ip neighbour show"},
	{"bridge.txt", "bridge -details link show"},
	{"sockets.txt", "ss -anup"},
	{"firewall.txt", "nft list ruleset"},
	{"rdma.txt", "rdma -details link show"},
	{"rdma-users.txt", "rdma resource show qp"},
	{"sysctl.txt", "sysctl net.core net.ipv4.conf net.ipv6.conf"},
}

func bugReportCommand() *cobra.Command {
	var file, configFile string
	cmd := &cobra.Command{
		Use:   "bugreport",
		Short: "Write an archive with everything that a bug report needs",
		Long: "Write a gzipped tar archive that describes this host and its daemon: findings, status,\n" +
			"events, log, the configuration file, and the network settings of the kernel. A command\n" +
			"that is missing or fails is noted in the archive. The command changes nothing.\n\n" +
			"The archive contains addresses, firewall rules and the names of processes: review it\n" +
			"before you share it. Run it as root, with the --control of the daemon.",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			name := "ipoibd-bugreport-" + time.Now().UTC().Format("20060102-150405")
			if file == "" {
				file = name + ".tar.gz"
			}
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			defer func() {
				if err = errors.Join(err, f.Close()); err != nil {
					_ = os.Remove(file)
				}
			}()
			if err := writeReport(ctx, f, cmd.ErrOrStderr(), name, socket(cmd), configFile); err != nil {
				return err
			}
			terminal.Fprintf(cmd.OutOrStdout(), "%s\n", file)
			return nil
		},
	}
	bindControl(cmd)
	cmd.Flags().StringVarP(&file, "output", "o", "",
		"file to create (default: ipoibd-bugreport-TIME.tar.gz in this directory)")
	cmd.Flags().StringVar(&configFile, "config", "", "also include this configuration file")
	return cmd
}

// writeReport writes the archive. Its files are in a directory of this name.
func writeReport(ctx context.Context, to, progress io.Writer, name, control, configFile string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	zip := gzip.NewWriter(to)
	archive := tar.NewWriter(zip)
	add := func(file string, content []byte) error {
		h := &tar.Header{Name: path.Join(name, file), Mode: 0o600, Size: int64(len(content)), ModTime: time.Now()}
		if err := archive.WriteHeader(h); err != nil {
			return err
		}
		_, err := archive.Write(content)
		return err
	}
	for _, e := range evidence {
		terminal.Fprintf(progress, "%s\n", e.command)
		args := strings.Fields(e.command)
		if args[0] == "ipoibd" {
			args[0] = self
			if args[1] != "version" && args[1] != "devices" {
				args = append(args, "--control", control)
			}
		}
		content := outputOf(ctx, args)
		if err := errors.Join(ctx.Err(), add(e.file, content)); err != nil {
			return err
		}
	}
	if configFile != "" {
		if err := add("config.yaml", outputOf(ctx, []string{"cat", "--", configFile})); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), zip.Close())
}

// outputOf returns what a command prints, and why it failed.
func outputOf(ctx context.Context, args []string) []byte {
	ctx, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = time.Second
	out := &limited{}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if out.cut {
		out.note(args, "the rest of its output is left out")
	}
	if err != nil {
		out.note(args, err.Error())
	}
	return out.kept
}

// limited keeps what is written to it, up to maxReported.
type limited struct {
	kept []byte
	cut  bool
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), maxReported-len(l.kept))
	l.kept, l.cut = append(l.kept, p[:n]...), l.cut || n < len(p)
	return len(p), nil
}

// note appends a remark about the command.
func (l *limited) note(args []string, text string) {
	l.kept = fmt.Appendf(l.kept, "\n%s: %s\n", strings.Join(args, " "), text)
}
