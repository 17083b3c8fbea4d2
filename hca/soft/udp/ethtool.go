package udp

import (
	"bytes"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// featureJoins is the feature of a netdev that joins received datagrams of one flow for any
// socket, even for one that has not requested trains (NETIF_F_GRO_FRAGLIST).
const featureJoins = "rx-gro-list"

// Constants of linux/ethtool.h that x/sys/unix lacks.
const (
	ethSSFeatures = 4  // the string set of feature names
	ethStringLen  = 32 // bytes of a name
)

// ethtoolReq is a struct ifreq with a command for ethtool (linux/if.h).
type ethtoolReq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// featureOn reports whether a feature of a netdev is on. fd is any socket in the network
// namespace of the netdev. It may block while another process holds the kernel's lock of all
// interfaces.
func featureOn(fd int, netdev, feature string) (bool, error) {
	// struct ethtool_sset_info
	count := [5]uint32{0: unix.ETHTOOL_GSSET_INFO, 2: 1 << ethSSFeatures}
	if err := ethtool(fd, "ETHTOOL_GSSET_INFO", netdev, count[:]); err != nil {
		return false, err
	}
	n := int(count[4])
	// struct ethtool_gstrings: cmd, set, length, names
	names := make([]uint32, 3+n*ethStringLen/4)
	names[0], names[1], names[2] = unix.ETHTOOL_GSTRINGS, ethSSFeatures, uint32(n)
	if err := ethtool(fd, "ETHTOOL_GSTRINGS", netdev, names); err != nil {
		return false, err
	}
	// struct ethtool_gfeatures: cmd, blocks, and for each block of 32 features their bits that
	// are available, requested, active, and never changed
	blocks := (n + 31) / 32
	features := make([]uint32, 2+4*blocks)
	features[0], features[1] = unix.ETHTOOL_GFEATURES, uint32(blocks)
	if err := ethtool(fd, "ETHTOOL_GFEATURES", netdev, features); err != nil {
		return false, err
	}
	text := unsafe.Slice((*byte)(unsafe.Pointer(&names[0])), 4*len(names))[3*4:]
	for i := range n {
		if name, _, _ := bytes.Cut(text[i*ethStringLen:(i+1)*ethStringLen], []byte{0}); string(name) == feature {
			return features[2+4*(i/32)+2]&(1<<(i%32)) != 0, nil
		}
	}
	return false, nil // the kernel does not know the feature
}

// ethtool runs the command in the first word of data. The kernel writes the result to data.
func ethtool(fd int, what, netdev string, data []uint32) error {
	req := ethtoolReq{data: unsafe.Pointer(unsafe.SliceData(data))}
	copy(req.name[:unix.IFNAMSIZ-1], netdev)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return os.NewSyscallError(what, errno)
	}
	return nil
}
