package link

import (
	"bytes"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of linux/ethtool.h that x/sys/unix lacks.
const (
	ethSSFeatures = 4  // the string set of feature names
	ethStringLen  = 32 // bytes of a name
)

// featureOffloads are the offloads of a TAP by the names of their features, whose bits differ
// between kernels (net/ethtool/common.c, netdev_features_strings).
var featureOffloads = map[string]Offloads{
	"tx-checksum-ip-generic":  OffloadCsum,
	"tx-tcp-segmentation":     OffloadTSO4,
	"tx-tcp6-segmentation":    OffloadTSO6,
	"tx-udp-segmentation":     OffloadUSO,
	"tx-tcp-ecn-segmentation": offloadECN,
}

// ethtoolReq is a struct ifreq with a command for ethtool (linux/if.h).
type ethtoolReq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// offloads returns the offloads of an interface that are on.
func (r *rtnl) offloads(name string) (Offloads, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.socket.Socket == nil {
		return 0, ErrClosed
	}
	fd := r.socket.Socket.GetFd() // any socket in the network namespace of the interface
	// struct ethtool_sset_info
	count := [5]uint32{0: unix.ETHTOOL_GSSET_INFO, 2: 1 << ethSSFeatures}
	if err := ethtool(fd, "ETHTOOL_GSSET_INFO", name, count[:]); err != nil {
		return 0, err
	}
	n := int(count[4])
	// struct ethtool_gstrings: cmd, set, length, names
	names := make([]uint32, 3+n*ethStringLen/4)
	names[0], names[1], names[2] = unix.ETHTOOL_GSTRINGS, ethSSFeatures, uint32(n)
	if err := ethtool(fd, "ETHTOOL_GSTRINGS", name, names); err != nil {
		return 0, err
	}
	// struct ethtool_gfeatures: cmd, blocks, and for each block of 32 features their bits that
	// are available, requested, active, and never changed
	blocks := (n + 31) / 32
	features := make([]uint32, 2+4*blocks)
	features[0], features[1] = unix.ETHTOOL_GFEATURES, uint32(blocks)
	if err := ethtool(fd, "ETHTOOL_GFEATURES", name, features); err != nil {
		return 0, err
	}
	text := unsafe.Slice((*byte)(unsafe.Pointer(&names[0])), 4*len(names))[3*4:]
	on := Offloads(0)
	for i := range n {
		feature, _, _ := bytes.Cut(text[i*ethStringLen:(i+1)*ethStringLen], []byte{0})
		if active := features[2+4*(i/32)+2]; active&(1<<(i%32)) != 0 {
			on |= featureOffloads[string(feature)]
		}
	}
	return on, nil
}

// ethtool runs the command in the first word of data. The kernel writes the result to data.
func ethtool(fd int, what, name string, data []uint32) error {
	req := ethtoolReq{data: unsafe.Pointer(unsafe.SliceData(data))}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return os.NewSyscallError(what, errno)
	}
	return nil
}
