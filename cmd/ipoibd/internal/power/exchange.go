package power

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

const (
	// fixedLen is the length of the part of a message before its fields, and the offsets are in it (D-Bus specification,
	// "Message Format").
	fixedLen      = 16
	offType       = 1
	offBodyLen    = 4
	offSerial     = 8
	offFieldsLen  = 12
	fieldsAlign   = 8
	maxReply      = 64 << 10 // of logind and of the bus, far more than they send
	maxAuthLine   = 256
	maxControlLen = 4096 // for the descriptors of one message; the kernel permits 253 (SCM_MAX_FD)
)

// exchange is a connection to the bus that can receive descriptors, for calls one after the other. Any user may send
// it messages with descriptors; it closes these, and decodes only replies. (The library's connection keeps the
// descriptors of messages that nothing reads, and panics on an array of descriptors.)
type exchange struct {
	conn        *net.UnixConn
	serial      uint32 // of the last call
	descriptors []int  // received with the message that is being read
}

// dial connects to the bus.
func dial(ctx context.Context) (*net.UnixConn, error) {
	path, ok := strings.CutPrefix(address(), pathPrefix)
	if !ok {
		return nil, fmt.Errorf("bus address %q: only %s... is supported", address(), pathPrefix)
	}
	path, _, _ = strings.Cut(path, ",") // the GUID of the bus
	conn, err := (&net.Dialer{Timeout: callTimeout}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// join authenticates as the user of the process, and gets a name on the bus.
func (e *exchange) join() error {
	uid := hex.EncodeToString([]byte(strconv.Itoa(os.Getuid())))
	for _, step := range []struct{ send, want string }{
		{"\x00AUTH EXTERNAL " + uid, "OK "},
		{"NEGOTIATE_UNIX_FD", "AGREE_UNIX_FD"},
	} {
		if _, err := io.WriteString(e.conn, step.send+"\r\n"); err != nil {
			return err
		}
		switch line, err := e.line(); {
		case err != nil:
			return fmt.Errorf("authenticate: %w", err)
		case !strings.HasPrefix(line, step.want):
			return fmt.Errorf("authenticate: the bus answers %q, want %q", line, step.want)
		}
	}
	if _, err := io.WriteString(e.conn, "BEGIN\r\n"); err != nil {
		return err
	}
	_, err := e.call(busName, "/org/freedesktop/DBus", busName, "Hello")
	return err
}

// line reads a line of the authentication.
func (e *exchange) line() (string, error) {
	var line []byte
	for b := make([]byte, 1); !bytes.HasSuffix(line, []byte("\r\n")); line = append(line, b...) {
		if len(line) == maxAuthLine {
			return string(line), errors.New("a line without an end")
		}
		if _, err := io.ReadFull(e, b); err != nil {
			return string(line), err
		}
	}
	return strings.TrimSpace(string(line)), nil
}

// call calls a method and waits for its reply, whose descriptor, if it has one, is the caller's.
func (e *exchange) call(dest, path, face, member string, args ...any) (descriptor *os.File, err error) {
	e.serial++
	call := &dbus.Message{
		Type: dbus.TypeMethodCall, Flags: dbus.FlagNoAutoStart,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldDestination: dbus.MakeVariant(dest),
			dbus.FieldPath:        dbus.MakeVariant(dbus.ObjectPath(path)),
			dbus.FieldInterface:   dbus.MakeVariant(face),
			dbus.FieldMember:      dbus.MakeVariant(member),
		},
		Body: args,
	}
	if len(args) > 0 {
		call.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(args...))
	}
	var out bytes.Buffer
	if err := call.EncodeTo(&out, binary.LittleEndian); err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(out.Bytes()[offSerial:], e.serial) // the library has no way to set it
	if _, err := e.conn.Write(out.Bytes()); err != nil {
		return nil, err
	}
	for {
		reply, err := e.read()
		if err != nil {
			return nil, err
		}
		if reply == nil || reply.Headers[dbus.FieldReplySerial].Value() != e.serial {
			continue
		}
		if reply.Type == dbus.TypeError {
			return nil, dbus.Error{Name: fmt.Sprint(reply.Headers[dbus.FieldErrorName].Value()), Body: reply.Body}
		}
		var i dbus.UnixFDIndex
		if len(reply.Body) == 1 && dbus.Store(reply.Body, &i) == nil && int(i) < len(e.descriptors) {
			descriptor = os.NewFile(uintptr(e.descriptors[i]), member)
			e.descriptors = append(e.descriptors[:i], e.descriptors[i+1:]...)
		}
		e.drop()
		return descriptor, nil
	}
}

// read reads a message. It returns nil for one that is not a reply. The descriptors are those of a reply.
func (e *exchange) read() (*dbus.Message, error) {
	e.drop()
	var fixed [fixedLen]byte
	if _, err := io.ReadFull(e, fixed[:]); err != nil {
		return nil, err
	}
	var order binary.ByteOrder = binary.LittleEndian
	if fixed[0] == 'B' {
		order = binary.BigEndian
	}
	fields := (int64(order.Uint32(fixed[offFieldsLen:])) + fieldsAlign - 1) / fieldsAlign * fieldsAlign
	rest := fields + int64(order.Uint32(fixed[offBodyLen:]))
	if t := dbus.Type(fixed[offType]); t != dbus.TypeMethodReply && t != dbus.TypeError || rest > maxReply {
		_, err := io.CopyN(io.Discard, e, rest)
		return nil, err
	}
	message := append(fixed[:], make([]byte, rest)...)
	if _, err := io.ReadFull(e, message[fixedLen:]); err != nil {
		return nil, err
	}
	return dbus.DecodeMessage(bytes.NewReader(message))
}

// Read reads from the bus, and collects the descriptors that arrive: the kernel passes those of a message together with
// its first byte.
func (e *exchange) Read(b []byte) (int, error) {
	var control [maxControlLen]byte
	n, c, _, _, err := e.conn.ReadMsgUnix(b, control[:])
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:c])
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			e.descriptors = append(e.descriptors, fds...)
		}
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// drop closes the descriptors of the last message.
func (e *exchange) drop() {
	for _, fd := range e.descriptors {
		_ = unix.Close(fd)
	}
	e.descriptors = nil
}

// close ends the connection.
func (e *exchange) close() {
	e.drop()
	_ = e.conn.Close()
}
