package udp

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// MaxDatagram is the maximum length of a received datagram, in bytes: the length of a jumbo
// frame. A RoCEv2 UD packet has at most 4192.
const MaxDatagram = 9216

const (
	// recvSlots is the number of messages per call. Each may be a train of up to 64
	// datagrams (UDP_GRO_CNT_MAX), so two fill a batch, and their memory stays in the cache.
	recvSlots = 2
	// maxTrainSegs is the number of datagrams of the longest train that a kernel sends
	// (UDP_MAX_SEGMENTS; 64 before Linux 6.9) or joins. A guest that writes to a TAP or a packet
	// socket may make a train of 65,000 datagrams of a byte, which cost far more to receive
	// than to send.
	maxTrainSegs = 128
	// maxMessage bounds the length of a message in bytes: a train is at most one IP packet.
	maxMessage = 1 << 16
)

// receiver owns the socket that receives. Everything but counts is owned by the goroutine that
// calls recv.
type receiver struct {
	sock    *socket
	reserve *Reserve // to which sock belongs
	counts  rxCounts

	slots [recvSlots]recvSlot
	msgs  [recvSlots]unix.Mmsghdr
	next  int              // index of the first message that the caller has not received in full
	train transport.Packet // the fields of its datagrams, without Data
	rest  []byte           // its datagrams that are left; nil: it has not been read yet
	size  int              // length of each datagram except the last

	call func(fd uintptr) bool // recvmmsg; created once
	got  int
	err  unix.Errno

	mu          sync.Mutex  // guards the read deadline of sock, which is in the past while interrupted is set
	interrupted atomic.Bool // the next recv returns

	empty atomic.Pointer[func()] // is called when there is no datagram; nil: nothing is
}

// recvSlot is the memory of one received message. It must not move.
type recvSlot struct {
	control [controlRoom]byte // first: it must be aligned as a pointer is
	iov     unix.Iovec
	name    sockaddr
	data    [maxMessage]byte
}

func newReceiver(sock *socket, reserve *Reserve) *receiver {
	r := &receiver{sock: sock, reserve: reserve}
	r.counts.overflow = uint64(sock.dropped)
	for i := range r.slots {
		slot, hdr := &r.slots[i], &r.msgs[i].Hdr
		slot.iov.Base = &slot.data[0]
		slot.iov.SetLen(maxMessage)
		hdr.Name = (*byte)(unsafe.Pointer(&slot.name))
		hdr.Control = &slot.control[0]
		hdr.Iov = &slot.iov
		hdr.SetIovlen(1)
	}
	r.call = r.recvmmsg
	r.setInterrupted(false, time.Time{}) // an earlier transport may have left the socket interrupted
	return r
}

// recv blocks until it can return a datagram or is interrupted. After another process has
// destroyed the socket, recv returns hca.ErrIO.
func (r *receiver) recv(pkts []transport.Packet) (int, error) {
	for len(pkts) > 0 {
		if n := r.give(pkts); n > 0 {
			return n, nil
		}
		if r.sock.destroyed.Load() {
			return 0, r.sock.failure()
		}
		r.next, r.got = 0, 0
		switch err := r.sock.raw.Read(r.call); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			r.setInterrupted(false, time.Time{})
			return 0, nil
		case err != nil:
			return 0, hca.ErrClosed
		}
		if r.err != 0 {
			r.counts.errors.Add(1) // of an earlier packet, unless the socket was destroyed
			r.got = 0
			r.sock.destroyed.Store(r.err == unix.ECONNABORTED) // no ICMP error has this number
		}
	}
	return 0, nil
}

// interrupt makes the current or the next recv return. It fails only if the socket is closed,
// which ends recv too.
func (r *receiver) interrupt() {
	if !r.interrupted.Load() {
		r.setInterrupted(true, time.Unix(1, 0))
	}
}

func (r *receiver) setInterrupted(on bool, deadline time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.interrupted.Store(on)
	_ = r.sock.file.SetReadDeadline(deadline)
}

// recvmmsg returns false, which makes the poller wait, if there is no datagram. It never
// blocks, so it does not involve Go's scheduler: handing the processor over during a call
// that takes a little longer would cost more than the call.
func (r *receiver) recvmmsg(fd uintptr) bool {
	for i := range r.msgs {
		r.msgs[i].Hdr.Namelen = unix.SizeofSockaddrInet6
		r.msgs[i].Hdr.SetControllen(controlRoom)
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd,
		uintptr(unsafe.Pointer(&r.msgs[0])), recvSlots, unix.MSG_DONTWAIT, 0, 0)
	r.got, r.err = int(n), errno
	if errno != unix.EAGAIN {
		return true
	}
	if empty := r.empty.Load(); empty != nil {
		(*empty)()
	}
	return false
}

// give stores datagrams of the messages that recvmmsg has received in pkts, as many as fit, and
// returns their number.
func (r *receiver) give(pkts []transport.Packet) (n int) {
	var bytes uint64
	for n < len(pkts) && r.begin() {
		p := &pkts[n]
		*p = r.train
		size := min(r.size, len(r.rest))
		p.Data, r.rest = r.rest[:size], r.rest[size:]
		if size > MaxDatagram {
			r.counts.tooLong.Add(1)
		} else {
			bytes += uint64(size)
			n++
		}
		if len(r.rest) == 0 {
			r.rest = nil
			r.next++
		}
	}
	r.counts.packets.Add(uint64(n))
	r.counts.bytes.Add(bytes)
	return n
}

// begin reads the next message unless the rest of one is left. It returns false if there is
// none.
func (r *receiver) begin() bool {
	for r.rest == nil && r.next < r.got {
		if !r.read(r.next) {
			r.next++
		}
	}
	return r.rest != nil
}

// read makes message i the current train. It returns false if it has dropped the message.
func (r *receiver) read(i int) bool {
	slot, msg := &r.slots[i], &r.msgs[i]
	if msg.Hdr.Flags&unix.MSG_TRUNC != 0 {
		r.counts.tooLong.Add(1)
		return false
	}
	saw := parseControl(slot.control[:min(msg.Hdr.Controllen, controlRoom)])
	src, port := getAddr(&slot.name)
	if !saw.dst.IsValid() || !src.IsValid() {
		r.counts.noAddress.Add(1)
		return false
	}
	r.train = transport.Packet{Src: src, Dst: saw.dst, SrcPort: port, TOS: saw.tos, TTL: saw.ttl}
	rest := slot.data[:min(msg.Len, maxMessage)]
	r.size = len(rest)
	if saw.segment > 0 && saw.segment < r.size {
		r.size = saw.segment
		if n := (len(rest)-1)/r.size + 1; n > maxTrainSegs {
			r.counts.longTrain.Add(uint64(n))
			return false
		}
		r.counts.trains.Add(1)
	}
	r.rest = rest
	return true
}

// rxCounts are written by the goroutine that receives.
type rxCounts struct {
	packets, bytes             atomic.Uint64
	trains                     atomic.Uint64 // messages that held several packets
	tooLong, noAddress, errors atomic.Uint64
	longTrain                  atomic.Uint64

	mu       sync.Mutex // guards overflow
	overflow uint64     // as last read from the kernel
}

func (r *receiver) counters() []hca.Counter {
	c := &r.counts
	return []hca.Counter{
		{Name: "rx_packets", Kind: hca.CountTotal, Value: c.packets.Load()},
		{Name: "rx_bytes", Kind: hca.CountTotal, Value: c.bytes.Load()},
		{Name: "rx_trains", Kind: hca.CountTotal, Value: c.trains.Load()},
		{Name: "rx_drop_too_long", Kind: hca.CountDrop, Value: c.tooLong.Load()},
		{Name: "rx_drop_long_train", Kind: hca.CountDrop, Value: c.longTrain.Load()},
		// The kernel did not supply the addresses.
		{Name: "rx_drop_no_address", Kind: hca.CountDrop, Value: c.noAddress.Load()},
		// Errors of the socket; no datagram lost.
		{Name: "rx_error", Kind: hca.CountError, Value: c.errors.Load()},
		// Dropped by the kernel: buffer full, bad UDP checksum, sent by another socket of this host.
		{Name: "socket_drops", Kind: hca.CountDrop, Value: r.overflow()},
	}
}

// overflow returns how many datagrams the kernel has dropped at the socket since the
// receiver was made. It asks the kernel, because SO_RXQ_OVFL messages report drops only
// when a later datagram arrives.
func (r *receiver) overflow() uint64 {
	r.counts.mu.Lock()
	defer r.counts.mu.Unlock()
	_ = r.sock.raw.Control(func(fd uintptr) {
		if n, ok := socketDrops(fd); ok {
			r.counts.overflow = extend(r.counts.overflow, n)
		}
	})
	return r.counts.overflow - uint64(r.sock.dropped)
}

// extend extends a 32-bit counter to 64 bits; last is its previous extended value.
func extend(last uint64, now uint32) uint64 { return last + uint64(now-uint32(last)) }

// SK_MEMINFO_DROPS and SK_MEMINFO_VARS of linux/sock_diag.h.
const (
	memInfoDrops = 8
	memInfoVars  = 9
)

func socketDrops(fd uintptr) (uint32, bool) {
	var info [memInfoVars]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&size)), 0)
	return info[memInfoDrops], errno == 0
}

// close reads the kernel's counter for the last time, then ends the current recv.
func (r *receiver) close(errs *[]error) {
	r.overflow()
	*errs = append(*errs, r.reserve.giveBack(r.sock), r.sock.file.Close())
}
