package udp

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// sender owns the socket that sends. Everything but counts is owned by the goroutine that
// calls send.
type sender struct {
	sock   *socket
	netdev netdev
	counts txCounts

	untrained atomic.Pointer[error] // why no trains are sent; nil: they are

	slots [hca.Batch]sendSlot
	msgs  [hca.Batch]unix.Mmsghdr

	call func(fd uintptr) bool // sendmmsg for msgs[from:to]; created once
	from int
	to   int
	sent int
	err  unix.Errno

	callErrors func(fd uintptr) bool   // recvErrors; created once
	noMsgs     [hca.Batch]unix.Mmsghdr // messages without buffers, for callErrors
	taken      int                     // errors that the last callErrors removed
}

// maxTrain is the maximum length of a train in bytes: the longest UDP payload over IPv4.
const maxTrain = 1<<16 - 1 - 20 - 8

// netdev is the netdev below a sender.
type netdev interface {
	Present() bool             // it has not been removed
	HasAddr(a netip.Addr) bool // a is a usable source address
	TooLong()                  // a packet was too long for the netdev, or for its path; it does not block
}

func newSender(sock *socket, index int, dev netdev) *sender {
	s := &sender{sock: sock, netdev: dev}
	for i := range s.slots {
		s.slots[i].init(index)
	}
	s.call, s.callErrors = s.sendmmsg, s.recvErrors
	if err := sock.canSegment(); err != nil {
		s.refuseTrains(err)
	}
	return s
}

// limits returns the limits of trains.
func (s *sender) limits() transport.Limits {
	if s.untrained.Load() != nil {
		return transport.Limits{MaxSegs: 1}
	}
	return transport.Limits{MaxSegs: transport.MaxSegs, MaxBytes: maxTrain}
}

// refuseTrains makes every later train exceed the limits.
func (s *sender) refuseTrains(why error) { s.untrained.CompareAndSwap(nil, &why) }

// send sends in bursts until all packets were sent or dropped, the socket is full, or a train
// exceeds the limits.
func (s *sender) send(pkts []transport.Packet) (done int, err error) {
	for done < len(pkts) {
		if !s.netdev.Present() || s.sock.destroyed.Load() {
			return done, s.sock.failure()
		}
		burst, beyond := s.fill(pkts[done:])
		n, err := s.burst(burst)
		done += n
		switch {
		case err != nil || n < len(burst):
			return done, err
		case beyond:
			return done, transport.ErrLimits
		}
	}
	return done, nil
}

// fill builds the messages of the first packets in msgs, and returns these packets. Messages
// that slot.fill has refused have no name. beyond reports that the next packet is a train that
// exceeds the limits.
func (s *sender) fill(pkts []transport.Packet) (burst []transport.Packet, beyond bool) {
	limits := s.limits()
	for i := range min(len(pkts), hca.Batch) {
		if !limits.Allow(&pkts[i]) {
			return pkts[:i], true
		}
		s.slots[i].fill(&s.msgs[i], &pkts[i], s.sock.ipv6)
	}
	return pkts[:min(len(pkts), hca.Batch)], false
}

// burst sends the packets whose messages are in msgs. It returns fewer than all if the
// socket is full or there is an error.
func (s *sender) burst(pkts []transport.Packet) (int, error) {
	for i := 0; i < len(pkts); {
		if s.msgs[i].Hdr.Name == nil {
			s.counts.drops[dropInvalid].Add(uint64(pkts[i].Datagrams()))
			i++
			continue
		}
		end := i + 1
		for end < len(pkts) && s.msgs[end].Hdr.Name != nil {
			end++
		}
		n, full, err := s.run(pkts, i, end)
		if i += n; full || err != nil {
			return i, err
		}
	}
	return len(pkts), nil
}

// run sends msgs[from:to] with one call. It returns how many were sent, or 1 if it dropped the
// first. An ICMP error about an earlier packet fails the next call, whatever it sends. So run
// repeats a failed call once, and again as long as ICMP errors keep coming, with sendTries
// tries in all. It does not send a packet again that was lost on output. If the kernel or the
// NIC cannot cut a train, run returns transport.ErrLimits, and trains exceed the limits from
// then on.
func (s *sender) run(pkts []transport.Packet, from, to int) (done int, full bool, err error) {
	s.from, s.to = from, to
	for try, again := 1, true; again; try++ {
		if s.sock.raw.Write(s.call) != nil {
			return 0, false, hca.ErrClosed
		}
		switch s.err {
		case 0:
			var bytes, datagrams uint64
			for i := from; i < from+s.sent; i++ {
				bytes += uint64(s.msgs[i].Len)
				datagrams += uint64(pkts[i].Datagrams())
				if pkts[i].Segs > 1 {
					s.counts.trains.Add(1)
				}
			}
			s.counts.packets.Add(datagrams)
			s.counts.bytes.Add(bytes)
			return s.sent, false, nil
		case unix.EAGAIN:
			s.counts.full.Add(1)
			return 0, true, nil
		case unix.EINTR:
			return 0, false, nil
		case unix.ECONNABORTED: // no ICMP error has this number
			s.sock.destroyed.Store(true)
			return 0, false, s.sock.failure()
		case unix.ENOBUFS:
			again = false
		case unix.EIO:
			if pkts[from].Segs > 1 {
				s.refuseTrains(os.NewSyscallError("sendmmsg with UDP_SEGMENT", s.err))
				return 0, false, transport.ErrLimits
			}
			again = try == 1
		default:
			if s.err == unix.EMSGSIZE {
				s.netdev.TooLong()
			}
			icmp := s.takeErrors()
			again = try == 1 || icmp && try < sendTries
		}
	}
	s.counts.drops[s.reason(&pkts[from])].Add(uint64(pkts[from].Datagrams()))
	return 1, false, nil
}

// sendTries bounds the tries of a packet while ICMP errors about others fail it. A
// further try fails only if an error arrives between two calls.
const sendTries = 4

// reason returns why the kernel refused pkt. For a source address that is not ours, the kernel
// returns EINVAL or the error of a missing route, depending on its version and the family.
// For a train whose datagrams are too long for the netdev, older kernels (6.1) return EINVAL.
func (s *sender) reason(pkt *transport.Packet) drop {
	d := dropFor(s.err)
	switch {
	case (d == dropNoRoute || s.err == unix.EINVAL) && !s.netdev.HasAddr(pkt.Src):
		return dropBadSource
	case s.err == unix.EINVAL && pkt.Segs > 1:
		return dropTooLong
	}
	return d
}

// sendmmsg never waits, so it does not involve the scheduler; see recvmmsg.
func (s *sender) sendmmsg(fd uintptr) bool {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, fd,
		uintptr(unsafe.Pointer(&s.msgs[s.from])), uintptr(s.to-s.from), unix.MSG_DONTWAIT, 0, 0)
	s.sent, s.err = int(n), errno
	return true
}

func (s *sender) counters() []hca.Counter {
	refused := hca.Counter{Name: "tx_trains_refused", Kind: hca.CountGauge}
	if s.untrained.Load() != nil {
		refused.Value = 1
	}
	return append(s.counts.list(), refused)
}

// takeErrors empties the socket's queue of ICMP errors, within maxErrorCalls, and
// reports whether there were any.
func (s *sender) takeErrors() (found bool) {
	for range maxErrorCalls {
		if s.sock.raw.Write(s.callErrors) != nil || s.taken == 0 {
			break
		}
		found = true
		s.counts.icmpErrors.Add(uint64(s.taken))
	}
	return found
}

// maxErrorCalls bounds the time that a flood of errors takes. It is enough for a full
// queue: the default receive buffer of 208 KiB holds about 280 errors.
const maxErrorCalls = 8

// recvErrors removes up to hca.Batch errors. It does not read them, because ICMP messages
// are not authenticated. It never blocks; see recvmmsg.
func (s *sender) recvErrors(fd uintptr) bool {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd,
		uintptr(unsafe.Pointer(&s.noMsgs[0])), hca.Batch, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT, 0, 0)
	s.taken = int(n)
	if errno != 0 {
		s.taken = 0
	}
	return true
}

// pollEvery bounds the delay with which waitWritable notices the end of ctx or of the
// transport. Waiting is rare and short, because a device drains its queue. It does not use the
// runtime's poller, because a wait there would lock out Send.
const pollEvery = 10 * time.Millisecond

func (s *sender) waitWritable(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		wait := pollEvery
		if end, ok := ctx.Deadline(); ok {
			wait = min(wait, max(time.Until(end), time.Millisecond))
		}
		writable, err := s.pollWritable(wait)
		if err != nil || writable {
			return err
		}
	}
}

// pollWritable waits at most for wait until the socket is writable. It removes queued
// ICMP errors, which would end every poll at once.
func (s *sender) pollWritable(wait time.Duration) (writable bool, err error) {
	var n int
	var pollErr error
	ctlErr := s.sock.raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, pollErr = unix.Poll(fds, int(wait.Milliseconds()))
		if fds[0].Revents&(unix.POLLERR|unix.POLLOUT) == unix.POLLERR {
			n = 0
			_, _, _, _, err := unix.Recvmsg(int(fd), nil, nil, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
			if err == nil {
				s.counts.icmpErrors.Add(1)
			} else { // the queue is empty: clear the pending error, which would fail Send
				pending, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
				if unix.Errno(pending) == unix.ECONNABORTED {
					s.sock.destroyed.Store(true)
					pollErr = hca.ErrIO
				}
			}
		}
	})
	switch {
	case ctlErr != nil:
		return false, hca.ErrClosed
	case errors.Is(pollErr, unix.EINTR):
		return false, nil
	}
	return n > 0, pollErr
}
