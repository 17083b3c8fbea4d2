package udp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/udp/holders"
)

// ErrPortTaken means that another process, or the kernel, receives on UDP port 4791.
var ErrPortTaken = errors.New("port taken")

// Holder is a process that holds the port.
type Holder = holders.Process

// PortTakenError names the holders of the port; it wraps ErrPortTaken.
type PortTakenError struct {
	Port    uint16
	Holders []Holder // empty if no process was found
	Kernel  string   // the kernel module that probably uses it
}

func (e *PortTakenError) Error() string {
	holder, remedy := "an unknown process ('ss -ulpn sport = :4791', run by root, names it) or the kernel", "stop it"
	switch {
	case len(e.Holders) > 0:
		var names []string
		for _, h := range e.Holders {
			names = append(names, h.String())
		}
		holder = strings.Join(names, ", ")
		if slices.ContainsFunc(e.Holders, func(h Holder) bool { return h.Name == "ipoibd" }) {
			remedy = "run one daemon per underlay, and serve further interfaces with it " +
				"('interfaces' of its configuration file, then 'ipoibd reload')"
		}
	case e.Kernel != "":
		holder, remedy = "the kernel module "+e.Kernel, "remove the module"
	}
	return fmt.Sprintf("UDP port %d: %v by %s; %s, or run in another network namespace",
		e.Port, ErrPortTaken, holder, remedy)
}

// Unwrap makes errors.Is find ErrPortTaken.
func (e *PortTakenError) Unwrap() error { return ErrPortTaken }

// bindError adds the holders of the port to an error of binding the receiving socket on the netdev
// with this index.
func bindError(err error, index int) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return os.NewSyscallError("bind", err)
	}
	return takenOn(index)
}

// Taken returns a *PortTakenError that names the processes that use the port on a netdev, or nil if it
// finds none. It binds nothing.
func Taken(netdev string) error {
	n, err := net.InterfaceByName(netdev)
	if err != nil {
		return nil // opening the transport reports it
	}
	if e := takenOn(n.Index); len(e.Holders) > 0 {
		return e
	}
	return nil
}

// takenOn returns the error for a port in use on a netdev. If the kernel cannot list sockets
// (no udp_diag), it names no process.
func takenOn(index int) *PortTakenError {
	e := &PortTakenError{Port: Port}
	if inodes, err := holders.Sockets(Port, index); err == nil {
		e.Holders = holders.Processes(inodes)
	}
	if _, err := os.Stat("/sys/module/rdma_rxe"); err == nil {
		e.Kernel = "rdma_rxe"
	}
	return e
}
