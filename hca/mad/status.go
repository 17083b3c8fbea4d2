package mad

import (
	"fmt"
	"strings"
)

// Status is the status of an answer (IBA 13.4.7). The low byte has the bits of all classes, the high byte a code of the
// SA class (IBA 15.2).
type Status uint16

// Statuses. The three of invalid fields are values of bits 2 to 4.
const (
	StatusOK       Status = 0
	StatusBusy     Status = 1 << 0 // try later
	StatusRedirect Status = 1 << 1 // ask another port, see Redirect

	StatusBadVersion        Status = 1 << 2 // base or class version
	StatusBadMethod         Status = 2 << 2 // method is unknown
	StatusBadMethodWithAttr Status = 3 << 2 // method is unknown for this attribute
	StatusBadField          Status = 7 << 2 // a field has an invalid value

	StatusNoResources            Status = 0x0100
	StatusRequestInvalid         Status = 0x0200 // to a join: parameters that the group or the port does not have
	StatusNoRecords              Status = 0x0300
	StatusTooManyRecords         Status = 0x0400
	StatusInvalidGID             Status = 0x0500
	StatusInsufficientComponents Status = 0x0600 // to a join: the group does not exist
	StatusDenied                 Status = 0x0700
)

const (
	statusField      = 7 << statusFieldShift
	statusFieldShift = 2
	statusCode       = 0xff << statusCodeShift
	statusCodeShift  = 8
)

// Busy reports whether the SA asks for the same request later.
func (s Status) Busy() bool { return s&StatusBusy != 0 }

// Redirected reports whether the SA refers to another port.
func (s Status) Redirected() bool { return s&StatusRedirect != 0 }

// Code returns the code of the SA class, one of the constants from StatusNoResources on, or 0.
func (s Status) Code() Status { return s & statusCode }

// fieldNames are the values of the three bits of invalid fields, codeNames the codes of the SA class from
// StatusNoResources on.
var (
	fieldNames = [8]string{
		1: "unsupported version", 2: "unsupported method", 3: "unsupported method for this attribute", 7: "invalid field",
	}
	codeNames = [...]string{
		1: "no resources", 2: "request invalid", 3: "no records", 4: "too many records", 5: "invalid GID",
		6: "insufficient components", 7: "denied",
	}
)

// String returns everything that s says, in words, and its value unless it is StatusOK.
func (s Status) String() string {
	if s == StatusOK {
		return "ok"
	}
	var parts []string
	if s.Busy() {
		parts = append(parts, "busy")
	}
	if s.Redirected() {
		parts = append(parts, "redirect")
	}
	if name := fieldNames[s&statusField>>statusFieldShift]; name != "" {
		parts = append(parts, name)
	}
	if code := int(s >> statusCodeShift); code > 0 && code < len(codeNames) {
		parts = append(parts, codeNames[code])
	}
	if len(parts) == 0 {
		parts = []string{"unknown status"}
	}
	return fmt.Sprintf("%s (0x%04x)", strings.Join(parts, ", "), uint16(s))
}
