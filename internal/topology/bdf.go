package topology

import (
	"fmt"
	"strings"
)

// ParseBDF normalises a PCI address: lower case, domain of at least four digits, function 0 where
// none is given. It takes "0a:00", "0a:00.0", "0000:0a:00.0", "00000000:0A:00.0" and domains of more
// than four digits ("10000:00:04.0").
func ParseBDF(s string) (string, error) {
	bad := func() (string, error) {
		return "", fmt.Errorf("%q is not a PCI address such as 0000:0a:00.0", s)
	}
	parts := strings.Split(strings.ToLower(strings.TrimSpace(s)), ":")
	if len(parts) == 2 {
		parts = append([]string{"0000"}, parts...)
	}
	if len(parts) != 3 {
		return bad()
	}
	domain, bus := parts[0], parts[1]
	dev, fn, ok := strings.Cut(parts[2], ".")
	if !ok {
		fn = "0"
	}
	if !hexDigits(domain, 1, 8) || !hexDigits(bus, 1, 2) || !hexDigits(dev, 1, 2) || !hexDigits(fn, 1, 1) {
		return bad()
	}
	domain = strings.TrimLeft(domain, "0")
	return fmt.Sprintf("%s:%s:%s.%s", pad(domain, 4), pad(bus, 2), pad(dev, 2), fn), nil
}

func hexDigits(s string, least, most int) bool {
	if len(s) < least || len(s) > most {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}

func pad(s string, n int) string {
	if len(s) >= n {
		return s
	}
	return strings.Repeat("0", n-len(s)) + s
}

// shortBDF leaves the domain 0000 and the function 0 out, for people.
func shortBDF(bdf string) string {
	return strings.TrimSuffix(strings.TrimPrefix(bdf, "0000:"), ".0")
}

// slot is a PCI address without its function: functions of one card share it.
func slot(bdf string) string {
	s, _, _ := strings.Cut(bdf, ".")
	return s
}
