package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// relay is the wire between two hosts. The underlay of each host is a TAP without offloads,
// whose queue the relay holds: so the host's kernel cuts trains, and fills in checksums, before
// the relay reads the frames. It impairs RoCEv2 datagrams, and forwards all other frames.
//
// It joins some runs of datagrams into trains for the receiver, as a NIC does, so that
// damaged, repeated and overtaken datagrams also occur within trains.
type relay struct {
	tb   testing.TB
	legs [2]*leg
	wake *os.File // readable: stop
	done chan struct{}

	mu sync.Mutex // guards the tallies and watch
	// watch, if set, sees each datagram before it is impaired, and each intact one that is
	// written. It must not keep them.
	watch func(from int, d datagram, written bool)
}

// leg is one end of the relay.
type leg struct {
	*impairment // of what this end reads
	fd          int
	frames      [][]byte // one for each read of a batch, with a virtio header
	out         []datagram
	room        []byte     // for a train
	joins       *rand.Rand // selects runs to be joined; apart from the impairment, which it must not change
	// failed is the first error of a write.
	failed error
}

// Sizes of the relay.
const (
	virtioLen    = 10 // linux/virtio_net.h, without the number of buffers
	relayBatch   = 64
	relayIdle    = 2 // ms without a frame, after which nothing is held back any longer
	maxTrain     = 64
	maxTrainSize = 65000
	// relayQueue is the length of each TAP's queue in frames: more than TCP's windows hold.
	relayQueue = 50000

	virtioNeedsCsum = 1
	virtioUDP       = 5 // VIRTIO_NET_HDR_GSO_UDP_L4
)

// newRelay creates two hosts, without daemons, that are joined by a relay. It forwards everything
// until its legs get other rates.
func newRelay(tb testing.TB, mtu int) (hosts [2]*host, r *relay) {
	tb.Helper()
	r = &relay{tb: tb, done: make(chan struct{})}
	for i := range r.legs {
		h := &host{Namespace: nstest.New(tb), tb: tb, number: i, dir: shortDir(tb)}
		hosts[i] = h
		queue := h.Tap(nstest.Dev)
		tb.Cleanup(func() { queue.Close() })
		h.Run("ip", "link", "set", nstest.Dev, "address", macOf(i), "mtu", fmt.Sprint(mtu), "txqueuelen", fmt.Sprint(relayQueue), "up")
		h.addUnderlay()
		// Router solicitations continue for longer than the tests wait.
		h.Run("sysctl", "-q", "-w", "net.ipv6.conf.default.router_solicitations=0")
		fd := int(queue.Fd())
		if err := unix.SetNonblock(fd, true); err != nil {
			tb.Fatal(err)
		}
		r.legs[i] = &leg{impairment: newImpairment(0, 0, rates{}), fd: fd, room: make([]byte, 1<<17), joins: rand.New(rand.NewPCG(relaySeed, uint64(i)))}
		for range relayBatch {
			r.legs[i].frames = append(r.legs[i].frames, make([]byte, virtioLen+etherLen+mtu+4))
		}
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	r.wake = os.NewFile(uintptr(event), "eventfd")
	go r.run()
	tb.Cleanup(r.stop)
	return hosts, r
}

// stop ends the loop, before the queues are closed.
func (r *relay) stop() {
	if _, err := r.wake.Write(binary.NativeEndian.AppendUint64(nil, 1)); err != nil {
		r.tb.Errorf("stop the relay: %v", err)
	}
	<-r.done
	r.wake.Close()
	for i, l := range r.legs {
		if l.failed != nil {
			r.tb.Errorf("the relay did not write a frame to host %d: %v", i, l.failed)
		}
	}
}

func (r *relay) run() {
	defer close(r.done)
	fds := []unix.PollFd{{Fd: int32(r.legs[0].fd), Events: unix.POLLIN}, {Fd: int32(r.legs[1].fd), Events: unix.POLLIN}, {Fd: int32(r.wake.Fd()), Events: unix.POLLIN}}
	for {
		limit := -1
		if len(r.legs[0].held)+len(r.legs[1].held) > 0 {
			limit = relayIdle
		}
		n, err := unix.Poll(fds, limit)
		if fds[2].Revents != 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		for i, l := range r.legs {
			switch {
			case n == 0:
				r.mu.Lock()
				r.write(i, l.flush(l.out[:0]))
				r.mu.Unlock()
			case fds[i].Revents != 0:
				r.mu.Lock()
				r.batch(i)
				r.mu.Unlock()
			}
		}
	}
}

// batch forwards what one end has received.
func (r *relay) batch(from int) {
	l := r.legs[from]
	l.out = l.out[:0]
	for _, buf := range l.frames {
		n, err := unix.Read(l.fd, buf)
		if err != nil {
			break // EAGAIN
		}
		frame := buf[virtioLen:n]
		d, ok := parseDatagram(frame)
		if !ok {
			r.write(from, l.out)
			l.out = l.out[:0]
			r.put(from, plain, frame)
			continue
		}
		if r.watch != nil {
			r.watch(from, d, false)
		}
		l.out = l.pass(d, l.out)
	}
	r.write(from, l.out)
}

// write writes datagrams to the other end. Half of the runs that can be trains become trains.
func (r *relay) write(from int, list []datagram) {
	l := r.legs[from]
	for len(list) > 0 {
		n := 1
		if l.joins.IntN(2) == 0 {
			n = trainLen(list)
		}
		if n == 1 {
			r.put(from, plain, list[0].frame)
		} else {
			l.tally.joined += uint64(n)
			header, frame := train(l.room, list[:n])
			r.put(from, header, frame)
		}
		for _, d := range list[:n] {
			l.tally.written++
			if r.watch != nil && d.intact() {
				r.watch(from, d, true)
			}
		}
		list = list[n:]
	}
}

// put writes a frame to the other end.
func (r *relay) put(from int, header, frame []byte) {
	to := r.legs[1-from]
	if _, err := unix.Writev(to.fd, [][]byte{header, frame}); err != nil && to.failed == nil {
		to.failed = err
	}
}

// plain is the virtio header of a frame that leaves no work to the kernel.
var plain = make([]byte, virtioLen)

// trainLen returns how many datagrams at the start of the list can be one train: of one path,
// and of one size, except that the last may be shorter.
func trainLen(list []datagram) int {
	first := list[0]
	size, total := len(first.roce), len(first.roce)
	for i, d := range list[1:] {
		total += len(d.roce)
		switch {
		case i+1 == maxTrain, total > maxTrainSize, len(d.roce) > size,
			d.path.SrcPort != first.path.SrcPort, d.path.Src != first.path.Src, d.path.Dst != first.path.Dst, d.path.Dst.IsMulticast():
			return i + 1
		case len(d.roce) < size:
			return i + 2
		}
	}
	return len(list)
}

// train makes a train in room: its virtio header, and one frame with the payloads of all. Its UDP
// checksum is that of the pseudo-header, which asks the kernel to complete it.
func train(room []byte, list []datagram) (header, frame []byte) {
	first := list[0]
	headers := len(first.frame) - len(first.ip) + ip6Len + udpLen
	if first.path.Src.Is4() {
		headers += ip4Len - ip6Len
	}
	frame = append(room[virtioLen:virtioLen], first.frame[:headers]...)
	for _, d := range list {
		frame = append(frame, d.roce...)
	}
	ip, udp := frame[etherLen:headers-udpLen], frame[headers-udpLen:]
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	binary.BigEndian.PutUint16(udp[udpSumAt:], fold(first.pseudo(len(udp))))
	if first.path.Src.Is4() {
		binary.BigEndian.PutUint16(ip[2:], uint16(ip4Len+len(udp)))
		binary.BigEndian.PutUint16(ip[ip4SumAt:], 0)
		binary.BigEndian.PutUint16(ip[ip4SumAt:], ^fold(sum16(ip)))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(udp)))
	}
	header = room[:virtioLen]
	header[0], header[1] = virtioNeedsCsum, virtioUDP
	binary.NativeEndian.PutUint16(header[2:], uint16(headers))
	binary.NativeEndian.PutUint16(header[4:], uint16(len(first.roce)))
	binary.NativeEndian.PutUint16(header[6:], uint16(headers-udpLen)) // where the checksum starts
	binary.NativeEndian.PutUint16(header[8:], udpSumAt)
	return header, frame
}
