package bpf

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	filterPriority = 4791 // no other program is known to use it
	filterName     = "ipoibd-ipid"
)

// ipidFilter is the program as a filter of the clsact qdisc. Several processes may each have one
// at a netdev: every filter has a random handle, and its process holds an abstract Unix socket
// whose name contains the handle. The name belongs to the network namespace, as the filter does,
// but ends with its process. So a filter whose name is free was left behind.
type ipidFilter struct {
	filter netlink.BpfFilter
	owner  int // the socket
}

// attachIPIDFilter attaches a program. It creates the qdisc if the netdev has none, and removes the
// filters that killed processes left behind. The qdisc is never removed, because other programs
// may use it by then.
func attachIPIDFilter(netdev, program int) (*ipidFilter, error) {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: netdev, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("add a clsact qdisc: %w", err)
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	f := &ipidFilter{filter: netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: netdev, Parent: netlink.HANDLE_MIN_INGRESS,
			Handle: binary.NativeEndian.Uint32(random[:])>>1 | 1, Priority: filterPriority, Protocol: unix.ETH_P_ALL,
		},
		Fd: program, Name: filterName, DirectAction: true,
	}}
	var err error
	if f.owner, err = ownIPIDFilter(f.filter.Handle); err != nil {
		return nil, fmt.Errorf("reserve the handle of a filter: %w", err)
	}
	err = removeLeftFilters(netdev)
	if err == nil {
		err = netlink.FilterAdd(&f.filter)
	}
	if err != nil {
		_ = unix.Close(f.owner)
		return nil, fmt.Errorf("add a filter: %w", err)
	}
	return f, nil
}

// ownIPIDFilter reserves a handle for this process. It returns EADDRINUSE if the handle belongs to
// another process.
func ownIPIDFilter(handle uint32) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@%s/%08x", filterName, handle)}); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

// removeLeftFilters removes the filters whose processes have ended. Another process can prevent
// that by taking the name of a filter, but a superfluous filter does no harm.
func removeLeftFilters(netdev int) error {
	filters, err := netlink.FilterList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: netdev}}, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return fmt.Errorf("list filters: %w", err)
	}
	for _, f := range filters {
		b, ok := f.(*netlink.BpfFilter)
		if !ok || b.Priority != filterPriority || !strings.HasPrefix(b.Name, filterName) {
			continue
		}
		fd, err := ownIPIDFilter(b.Handle)
		if err != nil {
			continue // in use
		}
		err = removeFilter(b)
		_ = unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *ipidFilter) Close() error {
	err := removeFilter(&f.filter)
	return errors.Join(err, os.NewSyscallError("close", unix.Close(f.owner)))
}

// removeFilter removes a filter, unless it or its netdev is gone.
func removeFilter(filter *netlink.BpfFilter) error {
	err := netlink.FilterDel(filter)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return os.NewSyscallError("RTM_DELTFILTER", err)
}
