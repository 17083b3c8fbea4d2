package sm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"ipoibd/scripts/vm/ibwire"
)

// callLimit bounds how long ibsim takes to answer, on a machine that is busy with guests. It answers within a
// millisecond on an idle one.
const callLimit = 20 * time.Second

// client is a connection to ibsim, attached to a node. One goroutine may call or query, and another receive, at the
// same time.
type client struct {
	control, data *net.UnixConn
	out           *net.UnixAddr // where ibsim receives the client's packets
	slot          uint32        // by which ibsim knows the client, 0-9
	lastTID       uint64
}

// socketName returns an abstract address of ibsim's. The trailing zero byte is part of it.
func socketName(base, name string, number uint32) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixgram", Name: fmt.Sprintf("@%s:%s%d\x00", base, name, number)}
}

// attach connects to the ibsim of a base name, as a client on a node. The number is not zero and differs from those of
// other clients.
func attach(base, node string, number uint32) (*client, error) {
	c := &client{}
	var err error
	// The socket for packets must exist before ibsim learns of the client.
	if c.data, err = net.ListenUnixgram("unixgram", socketName(base, "in", number)); err != nil {
		return nil, fmt.Errorf("attach to ibsim: %w", err)
	}
	server := &net.UnixAddr{Net: "unixgram", Name: "@" + base + ":ctl\x00"}
	if c.control, err = net.DialUnix("unixgram", socketName(base, "ctl", number), server); err != nil {
		_ = c.data.Close()
		return nil, fmt.Errorf("attach to ibsim: %w", err)
	}
	c.slot = number // until ibsim has assigned one
	reply, err := c.call(typeConnect, connectMessage(number, node))
	if err != nil {
		_ = c.data.Close()
		_ = c.control.Close()
		return nil, fmt.Errorf("attach to node %s: %w", node, err)
	}
	c.slot = connectedSlot(reply)
	c.out = socketName(base, "out", c.slot)
	return c, nil
}

// call sends a control message and returns the data of the reply, which is valid until the next call.
func (c *client) call(kind int, data []byte) ([]byte, error) {
	if _, err := c.control.Write(controlMessage(c.slot, kind, data)); err != nil {
		return nil, fmt.Errorf("call ibsim: %w", err)
	}
	if err := c.control.SetReadDeadline(time.Now().Add(callLimit)); err != nil {
		return nil, err
	}
	reply := make([]byte, controlLen)
	n, err := c.control.Read(reply)
	if err != nil {
		return nil, fmt.Errorf("wait for ibsim: %w", err)
	}
	out, err := parseControl(reply[:n], kind)
	if err != nil {
		return nil, fmt.Errorf("call ibsim: %w", err)
	}
	return out, nil
}

// send gives ibsim a packet.
func (c *client) send(e *envelope) error {
	_, err := c.data.WriteToUnix(e.bytes(), c.out)
	return err
}

// receive waits for a packet from ibsim, until the client is closed or the deadline of data has passed.
func (c *client) receive(e *envelope) error {
	b := make([]byte, dataLen+1)
	for {
		n, err := c.data.Read(b)
		if err != nil {
			return err
		}
		if e.parse(b[:n]) {
			return nil
		}
	}
}

// queryTries is how often a query is sent: ibsim loses packets on command.
const queryTries = 3

// query returns an attribute of the switch. No one else may receive.
func (c *client) query(attr uint16, modifier uint32) ([]byte, error) {
	var e envelope
	for range queryTries {
		c.lastTID++
		ask := envelope{dlid: ibwire.Permissive, slid: ibwire.Permissive, destQP: qpSubnet, fromQP: qpSubnet, mad: getFromSwitch(c.lastTID, attr, modifier)}
		if err := c.send(&ask); err != nil {
			return nil, fmt.Errorf("query the switch: %w", err)
		}
		if err := c.data.SetReadDeadline(time.Now().Add(callLimit / queryTries)); err != nil {
			return nil, err
		}
		err := c.receive(&e)
		for err == nil && tidOf(e.mad[:])&tidMask != c.lastTID {
			err = c.receive(&e) // an answer to an earlier query
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("query the switch: %w", err)
		}
		if status := statusOf(e.mad[:]) & statusMask; e.status != 0 || status != 0 {
			return nil, fmt.Errorf("query attribute %#x of the switch: status %#x, ibsim's %d", attr, status, e.status)
		}
		return e.mad[offData : offData+dataSize], nil
	}
	return nil, fmt.Errorf("query attribute %#x of the switch: no answer to %d requests", attr, queryTries)
}

// readTables reads the switch's tables.
func (c *client) readTables() (t tables, err error) {
	info, err := c.query(attrSwitchInfo, 0)
	if err != nil {
		return t, err
	}
	linear, groups := tableSizes(info)
	for block := range (linear + linearBlock - 1) / linearBlock {
		ports, err := c.query(attrLinear, uint32(block))
		if err != nil {
			return t, err
		}
		t.linear = append(t.linear, ports...)
	}
	for block := range groups / groupBlock {
		masks, err := c.query(attrMulticast, uint32(block))
		if err != nil {
			return t, err
		}
		t.addGroups(masks)
	}
	return t, nil
}

// close detaches from ibsim, which would otherwise keep the client's slot.
func (c *client) close() error {
	_, err := c.call(typeDisconnect, nil)
	return errors.Join(err, c.data.Close(), c.control.Close())
}
