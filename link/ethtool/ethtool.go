// Package ethtool reads the features of a netdev, such as its offloads, as `ethtool -k` shows
// them, and the statistics of its driver, as `ethtool -S` does; vishvananda/netlink and x/sys/unix
// have no calls for that. It uses the ioctls of linux/ethtool.h instead of generic netlink, because
// an ioctl works on any socket, and applies to the network namespace of that socket.
package ethtool

import (
	"bytes"
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of linux/ethtool.h that x/sys/unix lacks.
const (
	ssStats    = 1  // ETH_SS_STATS, the string set of names of statistics
	ssFeatures = 4  // ETH_SS_FEATURES, the string set of feature names
	stringLen  = 32 // ETH_GSTRING_LEN, the bytes of a name
	// spare is the room for more entries than the kernel has announced. It writes all entries that
	// exist by then (ethtool_get_strings and ethtool_get_stats, net/ethtool/ioctl.c), and a driver
	// has more if queues were added meanwhile: a handful each.
	spare = 4096
)

// request is a struct ifreq with a command for ethtool (linux/if.h).
type request struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// setInfo is a struct ethtool_sset_info that asks for the size of one string set.
type setInfo struct {
	cmd, _ uint32
	mask   uint64 // of the string sets
	size   uint32
}

// Active returns the kernel's names of the features of a netdev that are on
// (netdev_features_strings of net/ethtool/common.c). Their bits differ between kernels. fd is any
// socket in the network namespace of the netdev. Active may block while another process holds the
// kernel's lock of all interfaces.
func Active(fd int, netdev string) (names []string, err error) {
	all, err := stringSet(fd, netdev, ssFeatures)
	if err != nil {
		return nil, err
	}
	n := len(all)
	// struct ethtool_gfeatures: cmd, number of blocks, and for each block of 32 features their bits
	// that are available, requested, active, and never changed.
	blocks := (n + 31) / 32
	bits := make([]uint32, 2+4*blocks)
	bits[0], bits[1] = unix.ETHTOOL_GFEATURES, uint32(blocks)
	if err := ioctl(fd, "ETHTOOL_GFEATURES", netdev, unsafe.Pointer(&bits[0])); err != nil {
		return nil, err
	}
	for i, name := range all {
		if active := bits[2+4*(i/32)+2]; active&(1<<(i%32)) != 0 {
			names = append(names, name)
		}
	}
	return names, nil
}

// Statistics are counters of a netdev's driver, which are added up. One goroutine at a time uses them.
type Statistics struct {
	netdev string
	match  func(name string) bool
	size   int // number of all its counters
	chosen []int
}

// ErrChanged means that the driver has just got other statistics. The next Sum knows them.
var ErrChanged = errors.New("the driver has other statistics now")

// Choose returns the statistics of a netdev whose names match; a driver may have none. fd and blocking
// are as for Active.
func Choose(fd int, netdev string, match func(name string) bool) (*Statistics, error) {
	s := &Statistics{netdev: netdev, match: match}
	return s, s.choose(fd)
}

func (s *Statistics) choose(fd int) error {
	all, err := stringSet(fd, s.netdev, ssStats)
	s.size, s.chosen = len(all), nil
	for i, name := range all {
		if s.match(name) {
			s.chosen = append(s.chosen, i)
		}
	}
	return err
}

// Any reports whether there are any.
func (s *Statistics) Any() bool { return len(s.chosen) > 0 }

// Sum reads the statistics and returns their sum, also if the driver has others since, as with another
// number of queues. fd and blocking are as for Active; a driver asks its firmware for some of them, which
// takes about a millisecond. Errors: ErrChanged.
func (s *Statistics) Sum(fd int) (sum uint64, err error) {
	n, err := count(fd, s.netdev, ssStats)
	if err == nil && n != s.size {
		err = s.choose(fd)
	}
	if err != nil {
		return 0, err
	}
	// struct ethtool_stats: cmd and number of values in one word, values.
	table := make([]uint64, 1+s.size+spare)
	head := (*[2]uint32)(unsafe.Pointer(&table[0]))
	head[0], head[1] = unix.ETHTOOL_GSTATS, uint32(s.size)
	if err := ioctl(fd, "ETHTOOL_GSTATS", s.netdev, unsafe.Pointer(&table[0])); err != nil {
		return 0, err
	}
	if int(head[1]) != s.size {
		return 0, ErrChanged
	}
	for _, i := range s.chosen {
		sum += table[1+i]
	}
	return sum, nil
}

// count returns the number of names in a set.
func count(fd int, netdev string, set uint32) (n int, err error) {
	info := setInfo{cmd: unix.ETHTOOL_GSSET_INFO, mask: 1 << set}
	if err := ioctl(fd, "ETHTOOL_GSSET_INFO", netdev, unsafe.Pointer(&info)); err != nil || info.mask == 0 {
		return 0, err
	}
	return int(info.size), nil
}

// stringSet returns a set of names of a netdev's driver.
func stringSet(fd int, netdev string, set uint32) (names []string, err error) {
	n, err := count(fd, netdev, set)
	if n == 0 || err != nil {
		return nil, err
	}
	// struct ethtool_gstrings: cmd, set, length, names.
	table := make([]uint32, 3+(n+spare)*stringLen/4)
	table[0], table[1], table[2] = unix.ETHTOOL_GSTRINGS, set, uint32(n)
	if err := ioctl(fd, "ETHTOOL_GSTRINGS", netdev, unsafe.Pointer(&table[0])); err != nil {
		return nil, err
	}
	text := unsafe.Slice((*byte)(unsafe.Pointer(&table[0])), 4*len(table))[3*4:]
	for i := range min(int(table[2]), n+spare) {
		name, _, _ := bytes.Cut(text[i*stringLen:(i+1)*stringLen], []byte{0})
		names = append(names, string(name))
	}
	return names, nil
}

// ioctl runs the command at the start of data. The kernel writes the result to data.
func ioctl(fd int, what, netdev string, data unsafe.Pointer) error {
	req := request{data: data}
	copy(req.name[:unix.IFNAMSIZ-1], netdev)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return os.NewSyscallError(what, errno)
	}
	return nil
}
