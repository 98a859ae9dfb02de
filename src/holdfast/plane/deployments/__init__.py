"""Deployments, as far as what stands beside a training needs them: so many pods of one template, kept alive."""
