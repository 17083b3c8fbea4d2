package backend

import (
	"errors"
	"regexp"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/rdma"
	"ipoibd/link/ethtool"
)

// received matches the statistics of drivers (mlx5, mlx4, bnxt_en, ice, i40e) that count the pause frames
// that a port has received (IEEE 802.3 annex 31B, 802.1Qbb), or the time for which it was paused. Pause frames
// that a port has sent say nothing about its wire, only that this host or its HCA is slow.
var received = regexp.MustCompile(`^(port[._])?` +
	`(rx_(prio(rity)?_?\d+_|global_|pfc_)?(pause|xoff|pfc_ena_frames)\w*|link_xoff_rx)` +
	`(\.nic)?$`)

// pauseEvery is the minimum time between two readings. It is less than the time that it takes to suspect or
// to prove a freeze, so there is always a reading in between.
const pauseEvery = 500 * time.Millisecond

// pauses is an HCA that reports pause frames as its wire's report: sends wait as long as a switch or a
// peer pauses the port, which says nothing about the HCA (R7).
type pauses struct {
	hca.Device
	read  func() (uint64, error) // of all ports; may block
	close func() error

	mu      sync.Mutex // guards what follows
	count   uint64
	due     time.Time // when to read again
	reading bool
	closed  bool
}

// WireBlocked implements [hca.WireReporter]. It returns the result of an earlier reading and starts
// another one, because a reading waits for the kernel's lock of all interfaces.
func (p *pauses) WireBlocked() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reading && !p.closed && !time.Now().Before(p.due) {
		p.reading = true
		go p.readOnce()
	}
	return p.count + hca.WireBlockedOf(p.Device)
}

func (p *pauses) readOnce() {
	n, err := p.read()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil { // else the netdev is gone, or is being changed
		p.count = n
	}
	if p.reading, p.due = false, time.Now().Add(pauseEvery); p.closed {
		_ = p.close() // Close has left it to this reading
	}
}

// Close implements [hca.Device]. It leaves the rest to a reading under way: if it waited for the kernel's lock
// of all interfaces, the device would seem to hang.
func (p *pauses) Close() error {
	if err := p.Device.Close(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed = true; p.reading {
		return nil
	}
	return p.close()
}

// reportPauses makes a device report the pause frames that its netdevs have received. A device whose
// netdevs do not count them reports nothing.
func (k kernel) reportPauses(dev hca.Device, d rdma.Device) hca.Device {
	read, end := k.pauses(d)
	if read == nil {
		return dev
	}
	p := &pauses{Device: dev, read: read, close: sync.OnceValue(end)}
	p.readOnce()
	return p
}

// openPauses returns a function that reads how many pause frames the netdevs of a device have received,
// and one that ends its use. Both are nil if none of them counts any.
func openPauses(d rdma.Device) (read func() (uint64, error), end func() error) {
	if err := d.ReadGIDs(); err != nil {
		return nil, nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil
	}
	var counted []*ethtool.Statistics
	for _, netdev := range netdevsOf(d) {
		if s, err := ethtool.Choose(fd, netdev, received.MatchString); err == nil && s.Any() {
			counted = append(counted, s)
		}
	}
	end = func() error { return unix.Close(fd) }
	if len(counted) == 0 {
		_ = end()
		return nil, nil
	}
	return func() (sum uint64, err error) {
		for _, s := range counted {
			n, failed := s.Sum(fd)
			sum, err = sum+n, errors.Join(err, failed)
		}
		return sum, err
	}, end
}

// netdevsOf returns the netdevs of a device's ports.
func netdevsOf(d rdma.Device) (names []string) {
	for _, p := range d.Ports {
		for _, g := range p.GIDs {
			if g.Netdev != "" && !slices.Contains(names, g.Netdev) {
				names = append(names, g.Netdev)
			}
		}
	}
	return names
}
