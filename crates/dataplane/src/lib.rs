//! Desired state becomes kernel state. No API object is ever seen here.
