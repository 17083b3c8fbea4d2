package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/capture"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/terminal"
	"ipoibd/link/kernel"
	"ipoibd/ud/record"
)

func captureCommand() *cobra.Command {
	var q capture.Request
	var duration time.Duration
	var path string
	cmd := &cobra.Command{
		Use:   "capture",
		Short: "Capture the packets of an interface as pcapng, also on a real HCA",
		Long: "Capture the packets of an interface as pcapng, for tshark or Wireshark:\n\n" +
			"    ipoibd capture --level roce | tshark -r -\n\n" +
			"The levels are ethernet (the frames of ib0), ipoib (datagrams behind a GRH), roce (from\n" +
			"the IP header on) and infiniband (from the LRH on). The daemon builds the headers that an\n" +
			"HCA adds from what it knows; unknown fields are zero. The capture ends at a limit, or\n" +
			"with SIGINT or SIGTERM. It never delays traffic: if it cannot keep up, packets are missing\n" +
			"from the file, which records how many.",
		Args: func(cmd *cobra.Command, args []string) (err error) {
			q.Duration = duration.Seconds()
			if err = errors.Join(noArgs(cmd, args), q.Check()); err == nil && q.Filter != "" && q.BPF == "" {
				q.BPF, err = compileFilter(cmd.Context(), q.Filter)
			}
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			out, err := openCapture(cmd, path)
			if err != nil {
				return err
			}
			sum, err := control.GetCapture(ctx, socket(cmd), &q, out)
			if err = errors.Join(err, out.Close()); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%d packets captured, %d lost\n", sum.Packets, sum.Lost)
			return err
		},
	}
	bindControl(cmd)
	bindName(cmd, &q.Interface, "interface", "i", "interface to capture from (default: the only one)")
	f := cmd.Flags()
	f.StringSliceVar(&q.Levels, "level", []string{record.IPoIB.String()},
		"what to show: "+strings.Join(record.Levels(), ", ")+"; separate several by commas")
	f.StringVarP(&path, "write", "w", "-", "file to create or replace; -: standard output")
	f.Uint64VarP(&q.Count, "count", "c", 0, "stop after this many packets (default: no limit)")
	f.DurationVar(&duration, "duration", 0, "end after this long (default: no limit)")
	f.IntVarP(&q.Snaplen, "snaplen", "s", capture.MaxSnaplen, "bytes of each packet to write")
	f.StringVar(&q.Direction, "direction", capture.DirectionBoth, "in (to the host), out (from the host) or both")
	f.StringVar(&q.Filter, "filter", "",
		"capture only what matches this expression of pcap-filter(7); needs tcpdump to compile it")
	f.StringVar(&q.BPF, "bpf", "", "a filter as a program: the output of 'tcpdump -y EN10MB -ddd EXPRESSION'")
	cmd.MarkFlagsMutuallyExclusive("filter", "bpf")
	completeFlag(cmd, "level", record.Levels)
	completeFlag(cmd, "direction", func() []string {
		return []string{capture.DirectionIn, capture.DirectionOut, capture.DirectionBoth}
	})
	return cmd
}

// compileFilter returns the program of an expression.
func compileFilter(ctx context.Context, expression string) (string, error) {
	cmd := exec.CommandContext(ctx, "tcpdump", "-y", "EN10MB", "-ddd", "--", expression)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	program, err := cmd.Output()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", errors.New("--filter needs tcpdump, which is not installed; " +
			"compile the filter elsewhere, and pass its program with --bpf")
	case err != nil:
		return "", fmt.Errorf("tcpdump cannot compile the filter: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return string(program), nil
}

// openCapture returns the output of a capture.
func openCapture(cmd *cobra.Command, path string) (io.WriteCloser, error) {
	if path != "-" {
		return &newFile{path: path}, nil
	}
	out := cmd.OutOrStdout()
	if t, ok := out.(terminal.Writer); ok {
		out = t.W // it would escape the binary data
	}
	if f, ok := out.(*os.File); ok {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			return nil, errors.New("a capture is binary data, and standard output is a terminal; " +
				"use --write FILE, or a pipe: ipoibd capture | tshark -r -")
		}
	}
	return unclosed{out}, nil
}

// newFile is a file that is created, or replaced, by the first write, so that a refused capture
// leaves the old one.
type newFile struct {
	path string
	file *os.File
}

func (f *newFile) Write(b []byte) (n int, err error) {
	if f.file == nil {
		if f.file, err = replaceFile(f.path); err != nil {
			return 0, err
		}
	}
	return f.file.Write(b)
}

// replaceFile returns a new file in place of the one at a path, so that no traffic goes into a file, or through
// a link, that another user has put there. Only its owner can read it. A pipe or a device is opened as it is,
// unless it belongs to a user other than this one or root. So is a descriptor that the caller has passed.
func replaceFile(path string) (*os.File, error) {
	names := []string{path}
	info, err := os.Lstat(path)
	if err == nil && info.Mode().Type() == fs.ModeSymlink && trusted(info) {
		link, _ := os.Readlink(path) // of /dev/stdout: /proc/self/fd/1
		names = append(names, link)
	}
	for _, name := range names {
		if dir := filepath.Dir(name); dir == "/dev/fd" || dir == "/proc/self/fd" {
			return os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0) // not by path, which may lead elsewhere by now
		}
	}
	const other = fs.ModeNamedPipe | fs.ModeSocket | fs.ModeDevice | fs.ModeCharDevice
	if err != nil || info.Mode()&other == 0 {
		return kernel.Replace(path, func(*os.File) error { return nil })
	}
	to, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if info, err = to.Stat(); err == nil {
		if trusted(info) {
			return to, nil
		}
		err = fmt.Errorf("%s belongs to another user", path)
	}
	return nil, errors.Join(err, to.Close())
}

// trusted reports whether a file belongs to root or this user.
func trusted(file fs.FileInfo) bool {
	owner := file.Sys().(*syscall.Stat_t).Uid
	return owner == 0 || owner == uint32(os.Geteuid())
}

func (f *newFile) Close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

// unclosed is an output that others close.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }
