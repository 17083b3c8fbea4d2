package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"ipoibd/scripts/vm/protocol"
)

func main() {
	if os.Getpid() == 1 {
		fmt.Fprintln(os.Stderr, "agent: process 1:", beInit())
		os.Exit(1) // the kernel panics when process 1 exits, which ends QEMU
	}
	fmt.Fprintln(os.Stderr, "agent:", serve())
	os.Exit(1)
}

// beInit starts the second instance and reaps processes until that one exits.
func beInit() error {
	if err := prepareDev(); err != nil {
		return err
	}
	cmd := exec.Command("/init")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin"}
	if err := cmd.Start(); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if pid == cmd.Process.Pid {
			return fmt.Errorf("the agent exited: %#x", status)
		}
		if err != nil && err != syscall.EINTR {
			return os.NewSyscallError("wait4", err)
		}
	}
}

// serve prepares the guest and answers requests until an error occurs.
func serve() error {
	if err := prepare(); err != nil {
		return err
	}
	port, err := openPort()
	if err != nil {
		return err
	}
	s := newServer(port)
	s.reply(protocol.Reply{})
	return s.serve(protocol.NewReader(port))
}

// prepareDev mounts what the agent's own start needs.
func prepareDev() error {
	if err := unix.Mount("devtmpfs", "/dev", "devtmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /dev: %w", err)
	}
	return nil
}
