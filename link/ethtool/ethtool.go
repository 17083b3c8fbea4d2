// Package ethtool reads the features of a netdev, such as its offloads, as `ethtool -k` shows
// them; vishvananda/netlink and x/sys/unix have no calls for that. It uses the ioctls
// of linux/ethtool.h instead of generic netlink, because an ioctl works on any socket, and applies
// to the network namespace of that socket.
package ethtool

import (
	"bytes"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of linux/ethtool.h that x/sys/unix lacks.
const (
	ssFeatures = 4  // ETH_SS_FEATURES, the string set of feature names
	stringLen  = 32 // ETH_GSTRING_LEN, the bytes of a name
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
	info := setInfo{cmd: unix.ETHTOOL_GSSET_INFO, mask: 1 << ssFeatures}
	if err := ioctl(fd, "ETHTOOL_GSSET_INFO", netdev, unsafe.Pointer(&info)); err != nil {
		return nil, err
	}
	n := int(info.size)
	// struct ethtool_gstrings: cmd, set, length, names.
	table := make([]uint32, 3+n*stringLen/4)
	table[0], table[1], table[2] = unix.ETHTOOL_GSTRINGS, ssFeatures, info.size
	if err := ioctl(fd, "ETHTOOL_GSTRINGS", netdev, unsafe.Pointer(&table[0])); err != nil {
		return nil, err
	}
	// struct ethtool_gfeatures: cmd, number of blocks, and for each block of 32 features their bits
	// that are available, requested, active, and never changed.
	blocks := (n + 31) / 32
	bits := make([]uint32, 2+4*blocks)
	bits[0], bits[1] = unix.ETHTOOL_GFEATURES, uint32(blocks)
	if err := ioctl(fd, "ETHTOOL_GFEATURES", netdev, unsafe.Pointer(&bits[0])); err != nil {
		return nil, err
	}
	text := unsafe.Slice((*byte)(unsafe.Pointer(&table[0])), 4*len(table))[3*4:]
	for i := range n {
		if active := bits[2+4*(i/32)+2]; active&(1<<(i%32)) != 0 {
			name, _, _ := bytes.Cut(text[i*stringLen:(i+1)*stringLen], []byte{0})
			names = append(names, string(name))
		}
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
